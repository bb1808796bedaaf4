"""The operations of random programs: each draws its arguments, and runs on named arrays and on plain ones.

An operation gets a random generator and the sizes of its operands, and returns an `Operation`, or None where it does
not apply. Functions with kinks, such as `maximum`, get no constants that a result is likely to hit.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import axonym as nym

from .plain import Plain, align, broadcast, contract, get_row, get_rows, stack, transpose, update_rows


NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
Sizes = dict[str, int]


class Operation(NamedTuple):
    """What a program does in one step."""

    text: str
    named: Callable[..., Any]
    """Of a traced 1 and the operands, which are named arrays."""
    plain: Callable[..., Plain]
    """Of NumPy or `jax.numpy` and the operands, which are `Plain`."""
    source: tuple[Any, ...] = ()
    """The name of the function that made it, and what that function drew."""


class Again:
    """Chooses what `Draws` noted before."""

    def __init__(self, noted: Iterable[Any]) -> None:
        self._noted = iter(noted)

    def choice(self, options: Sequence[Any]) -> Any:
        noted = next(self._noted, None)
        for option in options:
            if getattr(option, "text", option) == noted:
                return option
        raise ValueError(f"a stored program has {noted!r} where its operation now draws one of {[*options]}")

    def sample(self, options: Sequence[Any], count: int) -> list[Any]:
        return [*next(self._noted)]

    def randint(self, least: int, most: int) -> int:
        return 0  # how many `sample` draws, which knows it


class Draws:
    """Draws the arguments of an operation, and notes them; of a choice between operations it notes the text."""

    def __init__(self, source: Random | Again) -> None:
        self.noted: list[Any] = []
        self._source = source

    def choice(self, options: Sequence[Any]) -> Any:
        option = self._source.choice(options)
        self.noted.append(getattr(option, "text", option))
        return option

    def sample(self, options: Sequence[Any], least: int) -> tuple[Any, ...]:
        """Draws at least so many, in any order."""
        self.noted.append((*self._source.sample(options, self._source.randint(least, len(options))),))
        return self.noted[-1]

    def randint(self, least: int, most: int) -> int:
        return self.choice(range(least, most + 1))


DRAWS: dict[str, Callable[..., Operation | None]] = {}
"""For each operation the function that draws its arguments."""


def operation(draw: Callable[..., Operation | None]) -> Callable[..., Operation | None]:
    DRAWS[draw.__name__] = draw
    return draw


def count_operands(name: str) -> int:
    return len(inspect.signature(DRAWS[name]).parameters) - 1


def make_operation(name: str, source: Random | Again, *sizes: Sizes) -> Operation | None:
    """Returns an operation with operands of these sizes, or None if it does not apply to them."""
    draws = Draws(source)
    made = DRAWS[name](draws, *sizes)
    return made and made._replace(source=(name, *draws.noted))


def unused(random: Draws, *operands: Sizes) -> str:
    return random.choice([name for name in NAMES if not any(name in sizes for sizes in operands)])


UNARY = ("abs", "arctan", "cos", "exp2", "negative", "sin", "sinc", "square", "tanh")


@operation
def apply_unary(random: Draws, x: Sizes) -> Operation | None:
    name = random.choice(UNARY)
    return Operation(
        name, lambda one, x: getattr(nym, name)(x), lambda xp, x: Plain(getattr(xp, name)(x.array), x.names)
    )


@operation
def apply_scalar(random: Draws, x: Sizes) -> Operation | None:
    factor, term = random.choice([-2, 0.5, 3]), random.choice([-0.75, 1])
    return Operation(
        f"x * {factor} + {term}",
        lambda one, x: x * factor + term,
        lambda xp, x: Plain(x.array * factor + term, x.names),
    )


@operation
def apply_binary(random: Draws, x: Sizes, y: Sizes) -> Operation | None:
    if not (x.keys() <= y.keys() or y.keys() <= x.keys()):
        return None
    name = random.choice(["add", "subtract", "multiply", "maximum", "minimum", "hypot"])
    return Operation(
        name, lambda one, x, y: getattr(nym, name)(x, y), lambda xp, x, y: broadcast(xp, getattr(xp, name), x, y)
    )


@operation
def apply_where(random: Draws, x: Sizes, y: Sizes) -> Operation | None:
    if not y.keys() <= x.keys():
        return None
    return Operation(
        "where(y > 0.317, x, y)",
        lambda one, x, y: nym.where(y > 0.317, x, y),
        lambda xp, x, y: broadcast(xp, lambda x, y: xp.where(y > 0.317, x, y), x, y),
    )


@operation
def reduce(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    axes = None if random.choice([True, *6 * [False]]) else random.sample([*x], 1)
    name = random.choice(["sum", "mean", "max", "min", "prod", "var"])

    def run(xp: Any, x: Plain) -> Plain:
        reduced = x.names if axes is None else axes
        return Plain(getattr(xp, name)(x.array, axis=x.dims(reduced)), x.without(*reduced))

    return Operation(f"{name}({axes})", lambda one, x: getattr(nym, name)(x, axes), run)


@operation
def reduce_masked(random: Draws, x: Sizes, y: Sizes) -> Operation | None:
    if not x or not y.keys() <= x.keys():
        return None
    axes = random.sample([*x], 1)

    def run(xp: Any, x: Plain, y: Plain) -> Plain:
        mask = align(xp, y, x.names) < 0.217
        return Plain(xp.sum(xp.where(mask, x.array, 0), axis=x.dims(axes)), x.without(*axes))

    return Operation(f"sum({axes}, where=y < 0.217)", lambda one, x, y: nym.sum(x, axes, where=y < 0.217), run)


@operation
def apply_softmax(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    axis, name = random.choice([*x]), random.choice(["softmax", "log_softmax", "logsumexp"])

    def run(xp: Any, x: Plain) -> Plain:
        (dim,) = x.dims([axis])
        total = xp.log(xp.sum(xp.exp(x.array), axis=dim, keepdims=True))
        if name == "logsumexp":
            return Plain(xp.squeeze(total, dim), x.without(axis))
        return Plain(xp.exp(x.array - total) if name == "softmax" else x.array - total, x.names)

    return Operation(f"{name}({axis!r})", lambda one, x: getattr(nym, name)(x, axis), run)


@operation
def accumulate(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    axis, name = random.choice([*x]), random.choice(["cumsum", "cumprod"])
    return Operation(
        f"{name}({axis!r})",
        lambda one, x: getattr(nym, name)(x, axis),
        lambda xp, x: Plain(getattr(xp, name)(x.array, axis=x.names.index(axis)), x.names),
    )


@operation
def apply_dot(random: Draws, x: Sizes, y: Sizes) -> Operation | None:
    common = [name for name in x if name in y]
    if not common:
        return None
    axes = random.sample(common, 1)
    rest = [name for name in {**x, **y} if name not in axes]
    way, rest = random.choice(["dot", "out_axes", "einsum"]), random.sample(rest, len(rest))
    left, right, out = " ".join(x), " ".join(y), " ".join(rest)
    named = {
        "dot": lambda one, x, y: nym.dot(x, y, axis=axes),
        "out_axes": lambda one, x, y: nym.dot(x, y, axis=axes, out_axes=rest),
        "einsum": lambda one, x, y: nym.einsum(f"{{{left}}}, {{{right}}} -> {out}", x, y),
    }[way]
    return Operation(f"{way} over {axes} to {rest}", named, lambda xp, x, y: contract(xp, x, y, axes))


@operation
def apply_rearrange(random: Draws, x: Sizes) -> Operation | None:
    order = random.sample([*x], len(x))
    way = random.choice(["tuple", "expression"])
    argument = f"{{{' '.join(x)}}} -> {' '.join(order)}" if way == "expression" and order else order
    return Operation(
        f"rearrange({argument!r})", lambda one, x: nym.rearrange(x, argument), lambda xp, x: transpose(x, order)
    )


@operation
def apply_rename(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    old, new = random.choice([*x]), unused(random, x)
    return Operation(
        f"rename({old!r} to {new!r})",
        lambda one, x: x.rename({old: new}),
        lambda xp, x: Plain(x.array, tuple(new if name == old else name for name in x.names)),
    )


@operation
def flatten(random: Draws, x: Sizes) -> Operation | None:
    if len(x) < 2:
        return None
    axes, new = random.sample([*x], 2), random.choice([*x, unused(random, x)])
    if new in x and new not in axes:
        return None

    def run(xp: Any, x: Plain) -> Plain:
        at = min(x.dims(axes))
        rest = x.without(*axes)
        before = [name for name in x.names[:at] if name not in axes]
        moved = transpose(x, (*before, *axes, *rest[len(before) :]))
        names = (*before, new, *rest[len(before) :])
        sizes = x.sizes
        return Plain(xp.reshape(moved.array, [-1 if name == new else sizes[name] for name in names]), names)

    return Operation(f"flatten_axes({axes}, {new!r})", lambda one, x: nym.flatten_axes(x, axes, new), run)


@operation
def unflatten(random: Draws, x: Sizes) -> Operation | None:
    axis = random.choice([*x]) if x else ""
    if x.get(axis, 1) % 2 or x[axis] < 4:
        return None
    outer, inner = random.choice([axis, unused(random, x)]), unused(random, x, {axis: 0})
    if outer == inner:
        return None
    first = random.choice([2, x[axis] // 2])
    new = {outer: first, inner: x[axis] // first}

    def run(xp: Any, x: Plain) -> Plain:
        at = x.names.index(axis)
        shape = [*x.array.shape[:at], *new.values(), *x.array.shape[at + 1 :]]
        return Plain(xp.reshape(x.array, shape), (*x.names[:at], *new, *x.names[at + 1 :]))

    return Operation(f"unflatten_axis({axis!r}, {new})", lambda one, x: nym.unflatten_axis(x, axis, new), run)


@operation
def get_elements(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    axis = random.choice([*x])
    size, new = x[axis], unused(random, x)
    at = random.randint(0, size - 1)
    positions = [random.randint(0, size - 1) for _ in range(random.choice([2, 4]))]
    step = slice(at, None, random.choice([1, 2]))
    start, length = random.randint(-1, size), random.randint(1, size)
    inside, first = min(max(start, 0), size - length), max(start, 0)

    def pick(one: Any, where: Any) -> Any:
        return jnp.asarray(where, jnp.int32) * one

    # For each index, how it is made of a traced 1, and which positions it has; those along a new axis are named.
    indices: dict[str, tuple[Callable[[Any], Any], Any]] = {
        f"{at}": (lambda one: at, at),
        f"traced {at}": (lambda one: pick(one, at), at),
        f"{step}": (lambda one: step, range(size)[step]),
        f"{positions}": (lambda one: positions, positions),
        f"named {positions} along {new!r}": (lambda one: nym.named(pick(one, positions), new), positions),
        f"ds({inside}, {length})": (lambda one: nym.ds(inside, length), range(inside, inside + length)),
        f"ds(traced {first}, {length})": (
            lambda one: nym.ds(pick(one, first), length),
            [min(first + place, size - 1) for place in range(length)],
        ),
    }
    text = random.choice([*indices])
    make, chosen = indices[text]

    def run(xp: Any, x: Plain) -> Plain:
        if isinstance(chosen, int):
            return get_row(xp, x, axis, chosen)
        name = new if text[0] == "n" else axis
        names = tuple(name if label == axis else label for label in x.names)
        return Plain(xp.take(x.array, np.asarray(chosen), axis=x.names.index(axis)), names)

    return Operation(f"x[{axis!r}, {text}]", lambda one, x: x[axis, make(one)], run)


@operation
def update_elements(random: Draws, x: Sizes, y: Sizes) -> Operation | None:
    if not x or not y.keys() < x.keys():
        return None
    axis = random.choice([name for name in x if name not in y])
    size = x[axis]
    way = random.choice(["set", "add", "multiply"])
    at, start, length = random.randint(0, size - 1), random.randint(0, size), random.randint(1, size)
    several = [*random.sample(range(size), 1)]
    inside = min(start, size - length)
    indices: dict[str, tuple[Callable[[Any], Any], Sequence[int]]] = {
        f"{at}": (lambda one: at, [at]),
        f"traced {at}": (lambda one: at * one, [at]),
        f"{several}": (lambda one: several, several),
        f"{at}:": (lambda one: slice(at, None), range(at, size)),
        f"ds({inside}, {length})": (lambda one: nym.ds(inside, length), range(inside, inside + length)),
        f"ds(traced {start}, {length})": (
            lambda one: nym.ds(start * one, length),
            range(start, min(start + length, size)),
        ),
    }
    text = random.choice([*indices])
    make, chosen = indices[text]
    options = {"unique_indices": True} if way == "multiply" else {}  # JAX's gradient needs it
    combine = {"set": lambda old, new: old * 0 + new, "add": operator.add, "multiply": operator.mul}[way]

    def run(xp: Any, x: Plain, y: Plain) -> Plain:
        value = align(xp, y, x.without(axis))
        return update_rows(xp, x, axis, chosen, lambda row, place: combine(row, value))

    return Operation(
        f"x.at[{axis!r}, {text}].{way}(y)", lambda one, x, y: getattr(x.at[axis, make(one)], way)(y, **options), run
    )


@operation
def apply_scan(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    axis, reverse = random.choice([*x]), random.choice([False, True])
    way = random.choice(["scan", "carry", "fold"])

    def step(carry: Any, row: Any) -> Any:
        return carry * 0.5 + row

    def run(xp: Any, x: Plain) -> Plain:
        rows = get_rows(xp, x, axis)
        carry, carries = rows[0].array * 0, [None] * len(rows)
        for at in reversed(range(len(rows))) if reverse else range(len(rows)):
            carry = step(carry, rows[at].array)
            carries[at] = rows[0]._replace(array=carry)
        return stack(xp, carries, axis) if way == "scan" else carries[0 if reverse else -1]

    def named(one: Any, x: Any) -> Any:
        init = nym.zeros(tuple(other for other in x.axes if other.name != axis))
        if way == "fold":
            return nym.fold(step, axis, reverse=reverse)(init, x)
        scanned = nym.scan(lambda carry, row: (step(carry, row), step(carry, row)), axis, reverse=reverse)(init, x)
        return scanned[way == "scan"]

    return Operation(f"{way}({axis!r}, reverse={reverse})", named, run)


@operation
def apply_vmap(random: Draws, x: Sizes, y: Sizes) -> Operation | None:
    common = [name for name in x if name in y]
    if not common:
        return None
    axis = random.choice(common)
    rest = tuple(name for name in common if name != axis)
    return Operation(
        f"vmap(dot over {rest}, {axis!r})",
        lambda one, x, y: nym.vmap(lambda x, y: nym.dot(x, y, axis=rest), axis)(x, y),
        lambda xp, x, y: contract(xp, x, y, rest),
    )


@operation
def join(random: Draws, x: Sizes, y: Sizes) -> Operation | None:
    if x.keys() != y.keys() or x != y:
        return None
    way = random.choice(["stack", "concatenate"])
    axis = unused(random, x) if way == "stack" else random.choice([*x, ""])
    if not axis:
        return None

    def run(xp: Any, x: Plain, y: Plain) -> Plain:
        if way == "stack":
            return stack(xp, [x, y], axis)
        arrays = [x.array, transpose(y, x.names).array]
        return Plain(xp.concatenate(arrays, axis=x.names.index(axis)), x.names)

    return Operation(f"{way}({axis!r})", lambda one, x, y: getattr(nym, way)(axis, [x, y]), run)


@operation
def extend(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    axis, times = random.choice([*x]), random.randint(1, 3)

    def along(fn: str, *args: Any, **options: Any) -> Callable[..., Plain]:
        return lambda xp, x: Plain(getattr(xp, fn)(x.array, *args, axis=x.names.index(axis), **options), x.names)

    def pad(xp: Any, x: Plain) -> Plain:
        return Plain(xp.pad(x.array, [(1, times) if name == axis else (0, 0) for name in x.names], mode=mode), x.names)

    mode = random.choice(["constant", "edge", "wrap"])
    return random.choice(
        [
            Operation(f"repeat({times}, {axis!r})", lambda one, x: nym.repeat(x, times, axis), along("repeat", times)),
            Operation(f"roll({times}, {axis!r})", lambda one, x: nym.roll(x, times, axis), along("roll", times)),
            Operation(f"flip({axis!r})", lambda one, x: nym.flip(x, axis), along("flip")),
            Operation(f"diff({axis!r})", lambda one, x: nym.diff(x, axis), along("diff")) if x[axis] > 1 else None,
            Operation(
                f"pad({axis!r}, (1, {times}), {mode!r})", lambda one, x: nym.pad(x, {axis: (1, times)}, mode=mode), pad
            ),
        ]
    )


@operation
def apply_sort(random: Draws, x: Sizes) -> Operation | None:
    if not x:
        return None
    axis, way = random.choice([*x]), random.choice(["sort", "argsort", "top_k", "median"])
    k = random.randint(1, x[axis])

    def run(xp: Any, x: Plain) -> Plain:
        dim = x.names.index(axis)
        if way == "median":
            return Plain(xp.median(x.array, axis=dim), x.without(axis))
        array = xp.sort(x.array, axis=dim)
        return Plain(xp.take(xp.flip(array, dim), np.arange(k), axis=dim) if way == "top_k" else array, x.names)

    named = {
        "sort": lambda one, x: nym.sort(x, axis),
        "argsort": lambda one, x: nym.take_along_axis(x, nym.argsort(x, axis), axis),
        "top_k": lambda one, x: nym.top_k(x, axis, k)[0],
        "median": lambda one, x: nym.median(x, axis),
    }[way]
    return Operation(f"{way}({axis!r}, {k})" if way == "top_k" else f"{way}({axis!r})", named, run)


@operation
def constrain(random: Draws, x: Sizes) -> Operation | None:
    return Operation("auto_sharded", lambda one, x: nym.auto_sharded(x), lambda xp, x: x)
