"""Fourier transforms over named axes, as in `jax.numpy.fft`."""

from ._frequencies import fftfreq as fftfreq, fftshift as fftshift, ifftshift as ifftshift, rfftfreq as rfftfreq
from ._transforms import fft as fft, hfft as hfft, ifft as ifft, ihfft as ihfft, irfft as irfft, rfft as rfft
