"""`NamedBase`, an array with names for its axes, and `Shape`, its sizes by name.

Operations take and return `N`, the class of named array they are given. They build results with `with_array`, which
checks nothing, since their names are correct by construction.
"""

from collections.abc import Mapping
from typing import Any, SupportsIndex, TypeVar, overload

import jax

from .._ground.errors import make_error
from .._ground.formats import format_axes, format_value
from .._ground.jax_compat import is_traced
from ._axis import Axis, AxisSelection, AxisSelector, Names, check_rank, find_axis, parse_selection


class Shape(tuple[int, ...]):
    """The sizes of a named array: a tuple that can also be indexed by name.

    It equals the tuple of its sizes, and the mapping from its names to them.

    Example:
        >>> import axonym as nym
        >>> shape = nym.zeros({"batch": 8, "embed": 64}).shape
        >>> shape["batch"], shape == (8, 64), shape == {"batch": 8, "embed": 64}
        (8, True, True)
    """

    names: Names

    def __new__(cls, sizes: tuple[int, ...], names: Names) -> "Shape":
        """Makes the tuple of sizes and stores the names."""
        shape = super().__new__(cls, sizes)
        shape.names = names
        return shape

    @overload
    def __getitem__(self, key: AxisSelector | SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[int, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        """Returns the size at a position or of a name, or a slice of the sizes."""
        if isinstance(key, str | Axis):
            return self[find_axis(self.names, tuple(self), key)]
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        """Returns whether there is an axis with this name, this name and size (an `Axis`), or this size."""
        if isinstance(key, Axis):
            return (key.name, key.size) in self.items()
        return key in self.names if isinstance(key, str) else super().__contains__(key)

    def __eq__(self, other: object) -> bool:
        """Compares with a tuple of sizes or a mapping from names to sizes."""
        if isinstance(other, Mapping):
            return dict(self.items()) == dict(other)
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        """Returns the opposite of `==`."""
        return not self == other

    __hash__ = tuple.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the sizes and names."""
        return (Shape, (tuple(self), self.names))

    def __repr__(self) -> str:
        """Formats names and sizes."""
        return format_axes(self.names, tuple(self))

    def keys(self) -> Names:
        """Returns the names in order."""
        return self.names

    def values(self) -> tuple[int, ...]:
        """Returns the sizes in order."""
        return tuple(self)

    def items(self) -> tuple[tuple[str, int], ...]:
        """Returns pairs of name and size in order."""
        return tuple(zip(self.names, self, strict=True))


class NamedBase:
    """An array and the names of its axes: the operand of every operation."""

    __slots__ = ("array", "names")

    array: jax.Array
    names: Names

    @property
    def shape(self) -> Shape:
        """The sizes, which can also be indexed by name."""
        sizes = self.array.shape
        check_rank(self.names, sizes)
        return Shape(sizes, self.names)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes in order, with the sizes of the array."""
        return tuple(Axis(name, size) for name, size in self.shape.items())

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.names)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.array.size)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.size * self.array.dtype.itemsize

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """The sharding of the array, or of its type if the array is traced."""
        # Neither tracers nor arrays of NumPy have one.
        sharding = None if is_traced(self.array) else getattr(self.array, "sharding", None)
        return jax.typeof(self.array).sharding if sharding is None else sharding

    def axis_size(self, axis: AxisSelector) -> int:
        """Returns the size of an axis."""
        return self.array.shape[find_axis(self.names, self.array.shape, axis)]

    def resolve_axis(self, axis: AxisSelector) -> Axis:
        """Returns the `Axis` of a name; raises a ValueError if an `Axis` given has another size."""
        index = find_axis(self.names, self.array.shape, axis)
        return Axis(self.names[index], self.array.shape[index])

    def has_axis(self, axis: AxisSelection) -> bool:
        """Returns whether the array has every selected axis, and with the same size if an `Axis` states it."""
        sizes = dict(self.shape.items())
        for selector in parse_selection(axis):
            if isinstance(selector, Axis):
                if sizes.get(selector.name) != selector.size:
                    return False
            elif selector not in sizes:
                return False
        return True


N = TypeVar("N", bound=NamedBase)
A = TypeVar("A", bound=NamedBase | jax.Array)

# The slots' own setters work although named arrays are immutable: their `__setattr__` raises an error.
set_array = NamedBase.__dict__["array"].__set__
set_names = NamedBase.__dict__["names"].__set__
_new = object.__new__


def with_array(x: N, array: Any, names: Names | None = None) -> N:
    """Returns an array of the class of `x` with another array, and with other names if given; checks nothing."""
    result = _new(type(x))
    set_array(result, array)
    set_names(result, x.names if names is None else names)
    return result


def check_named(x: Any) -> None:
    """Raises a TypeError if an operand is not a named array."""
    if not isinstance(x, NamedBase):
        raise make_unnamed_error(x)


def make_unnamed_error(x: Any) -> TypeError:
    return make_error(
        TypeError, f"A named array is needed, not {format_value(x)}; make one with `axonym.named(array, axes)`."
    )


def get_plain_array(x: Any) -> Any:
    """Returns the plain array of a named array, and a plain array as it is."""
    return x.array if isinstance(x, NamedBase) else x


def format_shape(x: NamedBase) -> str:
    """Formats the names and sizes of an array as in error messages."""
    return format_axes(x.names, x.array.shape)
