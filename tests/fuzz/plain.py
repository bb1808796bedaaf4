"""Positional arrays with a list of names: the reference that programs of named arrays are compared with.

The same functions run with NumPy, for values, and with `jax.numpy` without a mesh, for gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Plain(NamedTuple):
    """An array of NumPy or `jax.numpy`, and the name of each of its axes."""

    array: Any
    names: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.names, self.array.shape, strict=True))

    def dims(self, axes: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self.names.index, axes))

    def without(self, *axes: str) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in axes)


def transpose(x: Plain, names: Sequence[str]) -> Plain:
    return Plain(x.array.transpose(x.dims(names)), tuple(names))


def align(xp: Any, x: Plain, names: Sequence[str]) -> Any:
    """Returns the array with these names in this order, of size 1 where it lacks one."""
    ordered = transpose(x, [name for name in names if name in x.names])
    return xp.reshape(ordered.array, [ordered.sizes.get(name, 1) for name in names])


def broadcast(xp: Any, fn: Callable[..., Any], *xs: Plain) -> Plain:
    """Applies an elementwise function to arrays of which one has the axes of all others."""
    names = max(xs, key=lambda x: len(x.names)).names
    return Plain(fn(*(align(xp, x, names) for x in xs)), names)


def get_row(xp: Any, x: Plain, axis: str, at: int) -> Plain:
    return Plain(xp.take(x.array, at, axis=x.names.index(axis)), x.without(axis))


def get_rows(xp: Any, x: Plain, axis: str) -> list[Plain]:
    return [get_row(xp, x, axis, at) for at in range(x.sizes[axis])]


def stack(xp: Any, rows: Sequence[Plain], axis: str, dim: int = 0) -> Plain:
    names = [*rows[0].names]
    names.insert(dim, axis)
    arrays = [transpose(row, rows[0].names).array for row in rows]
    return Plain(xp.stack(arrays, axis=dim), tuple(names))


def update_rows(xp: Any, x: Plain, axis: str, positions: Sequence[int], update: Callable[[Any, int], Any]) -> Plain:
    """Returns an array in which `update` of a row and the place of its position replaces some rows of an axis."""
    rows = get_rows(xp, x, axis)
    for place, at in enumerate(positions):
        rows[at] = rows[at]._replace(array=update(rows[at].array, place))
    return stack(xp, rows, axis, x.names.index(axis))


def contract(xp: Any, x: Plain, y: Plain, summed: Sequence[str]) -> Plain:
    letters = {name: chr(ord("a") + at) for at, name in enumerate(dict.fromkeys(x.names + y.names))}
    names = tuple(name for name in letters if name not in summed)
    left, right, out = ("".join(letters[name] for name in some) for some in (x.names, y.names, names))
    return Plain(xp.einsum(f"{left},{right}->{out}", x.array, y.array), names)
