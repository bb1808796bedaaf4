"""Fourier transforms over named axes, as in `jax.numpy.fft`."""

from typing import TYPE_CHECKING

from ..named._foreign_names import suggest_named_way as _suggest_named_way
from ._fft import (
    fft as fft,
    fftfreq as fftfreq,
    fftshift as fftshift,
    hfft as hfft,
    ifft as ifft,
    ifftshift as ifftshift,
    ihfft as ihfft,
    irfft as irfft,
    rfft as rfft,
    rfftfreq as rfftfreq,
)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Raises an AttributeError that shows the named way for `fft2` and the like."""
        hint = "" if name.startswith("_") else _suggest_named_way(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
