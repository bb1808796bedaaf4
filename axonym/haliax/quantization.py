"""`haliax.quantization`, which is not there yet; its names raise an error that says so."""

from ._adapt import make_getattr


__getattr__ = make_getattr(
    "haliax.quantization",
    """
    CustomGradientAccumulation DefaultDotGeneralOp DotGeneralOp Fp8DotGeneralOp Int8DotGeneralOp OverwriteWithGradient
    QuantizationConfig accumulate_gradients apply_updates partition_for_grad_overwrite quantize_linear_layers
    """,
)
