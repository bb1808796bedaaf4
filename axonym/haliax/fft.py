"""`haliax.fft`: Fourier transforms."""

import functools
from collections.abc import Callable
from typing import Any

from .. import fft as transforms
from ..named._axis import Axis
from ._adapt import adapt


def _adapt_transform(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a transform whose sizes may be given by axes."""

    @functools.wraps(fn)
    def transform(x: Any, axis: Any = None, norm: Any = None) -> Any:
        if isinstance(axis, dict):
            axis = {name: size.size if isinstance(size, Axis) else size for name, size in axis.items()}
        return fn(x, axis, norm)

    return adapt(transform, "a=x")


fft = _adapt_transform(transforms.fft)
hfft = _adapt_transform(transforms.hfft)
ifft = _adapt_transform(transforms.ifft)
ihfft = _adapt_transform(transforms.ihfft)
irfft = _adapt_transform(transforms.irfft)
rfft = _adapt_transform(transforms.rfft)
fftfreq = adapt(transforms.fftfreq)
fftshift = adapt(transforms.fftshift, "axes=axis")
ifftshift = adapt(transforms.ifftshift, "axes=axis")
rfftfreq = adapt(transforms.rfftfreq)
