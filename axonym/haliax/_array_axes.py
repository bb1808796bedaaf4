"""Annotations of arrays as Haliax spells them, which `NamedArray.matches_axes` compares with an array."""

import dataclasses
from collections.abc import Set
from typing import Annotated, Any, get_args

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, repr=False)
class NamedArrayAxes:
    """The axes, and perhaps the dtype, that an annotation such as `f32["batch embed ..."]` describes.

    Args:
        before: Names before `...`, or all of them.
        after: Names after `...`.
        ordered: Whether the names have an order.
        subset: Whether there may be other axes, where the `...` is.
        dtype: A dtype, or a kind of dtypes such as `jnp.floating`; None for any.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.NamedArrayAxes(("batch",), subset=True)
        NamedArray[batch ...]
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    ordered: bool = True
    subset: bool = False
    dtype: Any = None

    @staticmethod
    def parse(spec: Any, dtype: Any = None) -> "NamedArrayAxes":
        """Returns the description given as a string, a sequence, a set, an annotation or as it is."""
        spec = get_args(spec)[1] if get_args(spec) else spec
        if isinstance(spec, NamedArrayAxes):
            return spec
        items = spec.split() if isinstance(spec, str) else list(spec)
        names = ["..." if one is ... else one for one in items]
        if names.count("...") > 1 or not all(isinstance(name, str) for name in names):
            raise ValueError(f"axes are names in order or in a set, with at most one `...`, not {spec!r}")
        ordered, subset = not isinstance(spec, Set), "..." in names
        at = names.index("...") if subset and ordered else len(names)
        before, after = names[:at], names[at + 1 :]
        return NamedArrayAxes(tuple(one for one in before if one != "..."), tuple(after), ordered, subset, dtype)

    @staticmethod
    def annotate(array: type, axes: Any, dtype: Any = None) -> Any:
        """Returns the annotation of an array class with axes and a dtype."""
        return Annotated[array, NamedArrayAxes.parse(axes, dtype)]

    def matches(self, names: tuple[str, ...], dtype: Any) -> bool:
        """Returns whether names and a dtype are as described."""
        if self.dtype is not None and not jnp.issubdtype(dtype, getattr(self.dtype, "category", self.dtype)):
            return False
        described = (*self.before, *self.after)
        if len(names) < len(described) or (len(names) > len(described) and not self.subset):
            return False
        if not self.ordered:
            return set(described) <= set(names)
        return names[: len(self.before)] == self.before and names[len(names) - len(self.after) :] == self.after

    def __repr__(self) -> str:
        """Formats the names."""
        dots = ["..."] if self.subset else []
        if self.ordered:
            text = " ".join([*self.before, *dots, *self.after])
        else:
            text = f"{{{', '.join([*self.before, *dots])}}}"
        return f"NamedArray[{text}]" if self.dtype is None else f"NamedArray[{self.dtype} {text}]"
