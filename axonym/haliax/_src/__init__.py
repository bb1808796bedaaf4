"""The private modules of Haliax from which programs import."""

from . import fp8 as fp8, parsing as parsing, rearrange as rearrange, state_dict as state_dict
