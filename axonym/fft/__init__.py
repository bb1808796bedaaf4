"""Fourier transforms over named axes, as in `jax.numpy.fft`."""

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
