"""`haliax._src.fp8`: the scales of 8-bit floats."""

from ..quantization import compute_scale as compute_scale
