"""`shard_map`: a function of the parts of arrays that single devices hold, with specs that follow from names.

The specs of the results follow from the names of what the function returns, which JAX has to be told before it traces
the function. So it is compiled by itself first, on the parts, and found again in JAX's cache where it is mapped.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from .._jax_compat import is_tracing
from ..named._ambient import get_entry_axes
from ..named._array import NamedArray, is_named_array
from ..named._axis import Names, format_axes, suggest_name
from ..named._base import format_shape
from ..named._broadcasting import jit_inline as inlined
from ..named._transforms._cache import compiled
from ..named._transforms._layout import Other, is_array, other_leaves, plain, unpacked
from ._axis_mapping import activate_mapping
from .mapping._axis_mapping import AxisMapping, ResourceMapping, as_mapping
from .sharding._placement import constrain_arrays, select_axis_type
from .specs._active_mesh import MeshLike, resolve_mesh
from .specs._resolve_spec import make_spec_entry, resolve_spec


Args = ParamSpec("Args")
R = TypeVar("R")


class _Plan(NamedTuple):
    """What is static about a call: the structure of the arguments, the specs of their leaves, and the options."""

    treedef: Any
    names: tuple[Names | None, ...]  # of each leaf, None if it is not named
    by_name: tuple[bool, ...]  # whether the spec of each leaf follows from its names
    specs: tuple[P, ...]
    others: tuple[tuple[int, type, Any], ...]  # leaves that are no arrays: where they are, of what type, themselves
    out_specs: tuple[tuple[P | None, ...], Any] | None  # the leaves of those given, and their structure
    mapping: AxisMapping
    results: AxisMapping  # by which results are put together: axes that no argument has divided are whole
    mesh: MeshLike
    manual: frozenset[str]  # the mesh axes over which the function sees parts
    check_vma: bool


@overload
def shard_map(
    fn: Callable[Args, R],
    *,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
) -> Callable[Args, R]: ...
@overload
def shard_map(
    fn: None = None,
    *,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
) -> Callable[[Callable[Args, R]], Callable[Args, R]]: ...
def shard_map(
    fn: Any = None,
    *,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
) -> Any:
    """Runs a function on each device, on its own part of every named array; see `jax.shard_map`. Also a decorator.

    Inside, a named array has the names that it has outside, and the sizes of one part. Mesh axes have to be named in
    collectives: `jax.lax.psum(x, "data")` takes named arrays as well. Results are put together by their names: an axis
    that is mapped is taken to be divided. Everything that is not mapped must be the same on all devices.

    The function is compiled once for each signature, so it does not see later changes of the Python values around it.

    Args:
        fn: The function.
        mapping: From names to mesh axes; the mapping in force if None. It is in force inside.
        mesh: The mesh; the one in force if None.
        in_specs: A sequence with a `PartitionSpec` for each positional argument, or a tree of them; None where named
            arrays go by their names, and plain arrays are given whole to every device.
        out_specs: The same for the result; None where it goes by names.
        axis_names: The mesh axes over which the function sees parts; all if None. Over the others arrays are whole
            inside, and divided as outside of `shard_map`.
        check_vma: Whether JAX checks that what is not divided is the same on all devices.

    Returns:
        Function of the same arguments.

    Raises:
        ValueError: When called, if there is no mapping or no mesh, the mesh lacks one of `axis_names`, an array cannot
            be divided as the mapping says, or what is not divided may differ from device to device, or a result has
            lost or gained an axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> @nym.shard_map
        ... def total(x):
        ...     return jax.lax.psum(x.sum("batch"), "data")
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))), nym.axis_mapping({"batch": "data"}):
        ...     total(nym.ones({"batch": 8, "embed": 2}))
        NamedArray(float32, embed: 2, [8., 8.])
    """
    if fn is None:
        options = {"mapping": mapping, "mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
        return functools.partial(shard_map, **options, axis_names=axis_names, check_vma=check_vma)

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        found = _needed_mapping(mapping)
        where = resolve_mesh(mesh, "`shard_map`")
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=is_named_array)
        given = _spread(in_specs, args, kwargs)
        specs = tuple(_in_spec(leaf, spec, found, where) for leaf, spec in zip(leaves, given, strict=True))
        out = None if out_specs is None else _flat_specs(out_specs)
        manual = _manual(axis_names, where)
        _check_given([*given, *(out[0] if out else ())], manual)
        results = found.merged(dict.fromkeys(_whole(leaves, specs)))
        names = tuple(leaf.names if is_named_array(leaf) else None for leaf in leaves)
        by_name = tuple(name is not None and spec is None for name, spec in zip(names, given, strict=True))
        plan = _Plan(
            treedef, names, by_name, specs, other_leaves(leaves), out, found, results, where, manual, check_vma
        )
        return unpacked(compiled(_run, fn, plan)(_placed(leaves, plan)))

    return mapped


def _manual(axis_names: Collection[str] | None, mesh: MeshLike) -> frozenset[str]:
    """Returns the mesh axes over which the function sees parts: all that are not Manual already, if none are given."""
    if axis_names is None:
        return frozenset(compress(mesh.axis_names, [kind != AxisType.Manual for kind in mesh.axis_types]))
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    unknown = next((name for name in names if name not in mesh.axis_names), None)
    if unknown is not None or not names:
        shown = format_axes(mesh.axis_names, tuple(mesh.shape.values()))
        raise ValueError(
            f"the `axis_names` of `shard_map` are mesh axes of {shown}, at least one"
            if unknown is None
            else f"mesh axis {unknown!r} is in the `axis_names` of `shard_map`, but not in the mesh {shown}"
            f"{suggest_name(unknown, mesh.axis_names)}"
        )
    return frozenset(names)


def _check_given(specs: Sequence[P | None], manual: frozenset[str]) -> None:
    for spec in filter(None, specs):
        for axis in (axis for entry in spec for axis in get_entry_axes(entry)):
            if axis not in manual:
                raise ValueError(
                    f"{spec} is given to `shard_map`, which divides over {format_axes(sorted(manual))} here and leaves mesh "
                    f"axis {axis!r} as it is; leave {axis!r} out of the spec, or add it to `axis_names`"
                )


def _flat_specs(out_specs: Any) -> tuple[tuple[P | None, ...], Any]:
    leaves, treedef = jax.tree.flatten(out_specs, is_leaf=lambda x: x is None)
    return tuple(leaves), treedef


def _needed_mapping(mapping: ResourceMapping | None) -> AxisMapping:
    """Returns a mapping under which what is mapped is divided: a part must never be taken for the whole."""
    found = as_mapping(mapping)
    if found is None:
        raise ValueError("`shard_map` needs a mapping; use `with axis_mapping(...)` or pass `mapping=`")
    return found.merged({}, uneven="error")


def _spread(in_specs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[P | None]:
    """Returns for each leaf of the arguments the spec given for it, None if there is none."""
    specs: list[P | None] = []

    def repeat(spec: P | None, subtree: Any) -> None:
        specs.extend([spec] * len(jax.tree.leaves(subtree, is_leaf=is_named_array)))

    try:
        jax.tree.map(repeat, in_specs if in_specs is None else tuple(in_specs), args, is_leaf=lambda x: x is None)
    except ValueError:
        raise ValueError("the `in_specs` of `shard_map` do not fit its positional arguments") from None
    repeat(None, kwargs)
    return specs


def _in_spec(leaf: Any, spec: P | None, mapping: AxisMapping, mesh: MeshLike) -> P:
    if spec is not None or not is_named_array(leaf):
        return P() if spec is None else spec
    try:
        return resolve_spec(leaf.names, tuple(leaf.array.shape), mapping, mesh)
    except ValueError as error:
        raise ValueError(f"`shard_map` divides whatever is mapped, so `uneven` is no way out here: {error}") from None


def _whole(leaves: Sequence[Any], specs: Sequence[P]) -> list[str]:
    """Returns the names of axes that arguments have and none of them divides, though the mapping may."""
    named = [(leaf.names, spec) for leaf, spec in zip(leaves, specs, strict=True) if is_named_array(leaf)]
    divided = {name for names, spec in named for name, entry in zip(names, spec, strict=False) if get_entry_axes(entry)}
    return sorted({name for names, _ in named for name in names} - divided)


def _placed(leaves: Sequence[Any], plan: _Plan) -> list[Any]:
    """Returns the plain arrays of the arguments, where the specs say, and None for what is no array."""
    others = {at for at, _, _ in plan.others}
    arrays = [None if at in others else plain(leaf) for at, leaf in enumerate(leaves)]
    inside = is_tracing() or not isinstance(plan.mesh, Mesh)
    shardings = [None if x is None else _sharding(x, at, plan, inside) for at, x in enumerate(arrays)]
    if not inside:
        return jax.device_put(arrays, shardings)
    return [_constrained(x, to, at, plan) for at, (x, to) in enumerate(zip(arrays, shardings, strict=True))]


def _sharding(x: Any, at: int, plan: _Plan, inside: bool) -> NamedSharding:
    """Returns where an argument belongs; what goes by no names stays as it is over mesh axes not of the function."""
    spec = plan.specs[at]
    if plan.by_name[at] or len(plan.manual) == len(plan.mesh.axis_names):
        return NamedSharding(plan.mesh, spec)
    own = jax.typeof(x).sharding if inside else getattr(x, "sharding", None)
    if not isinstance(own, NamedSharding) or own.mesh.shape != plan.mesh.shape:
        return NamedSharding(plan.mesh, spec)
    entries = zip([*spec, *[None] * x.ndim], [*own.spec, *[None] * x.ndim], range(x.ndim), strict=False)
    kept = [
        (*get_entry_axes(one), *(axis for axis in get_entry_axes(other) if axis not in plan.manual))
        for one, other, _ in entries
    ]
    return NamedSharding(plan.mesh, P(*map(make_spec_entry, kept)))


def _constrained(x: Any, to: NamedSharding | None, at: int, plan: _Plan) -> Any:
    if to is None:
        return x
    if plan.by_name[at] or len(plan.manual) == len(plan.mesh.axis_names):
        return constrain_arrays([x], [to])[0]
    stated = select_axis_type(to, AxisType.Explicit)  # what the function does not see is for the compiler to choose
    return x if stated is None else jax.reshard(x, stated)


def _run(fn: Callable[..., Any], plan: _Plan, arrays: Sequence[Any]) -> Any:
    def body(arrays: Sequence[Any]) -> Any:
        return _called(fn, plan, arrays)

    body.__name__ = getattr(fn, "__name__", type(fn).__name__)
    others = {at for at, _, _ in plan.others}
    specs = [None if at in others else _part(spec, plan) for at, spec in enumerate(plan.specs)]
    split = functools.partial(
        jax.shard_map, mesh=plan.mesh, in_specs=(specs,), axis_names=plan.manual, check_vma=plan.check_vma
    )
    once = inlined(body)  # traced where it is looked at, found again where it is mapped for good
    returned: list[Any] = []

    def look(arrays: Sequence[Any]) -> tuple[()]:
        returned.append(jax.tree.map(jax.typeof, once(arrays)))
        return ()

    jax.eval_shape(split(look, out_specs=()), arrays)
    return split(once, out_specs=_out_specs(returned[0], plan))(arrays)


def _part(spec: P, plan: _Plan) -> P:
    """Returns what a spec says of the mesh axes over which the function sees parts."""
    return P(*(make_spec_entry(tuple(axis for axis in get_entry_axes(entry) if axis in plan.manual)) for entry in spec))


def _called(fn: Callable[..., Any], plan: _Plan, arrays: Sequence[Any]) -> Any:
    nodes = [
        array if names is None else NamedArray(array, names) for array, names in zip(arrays, plan.names, strict=True)
    ]
    for at, _, other in plan.others:
        nodes[at] = other
    args, kwargs = jax.tree.unflatten(plan.treedef, nodes)
    with activate_mapping(plan.mapping):
        results = fn(*args, **kwargs)
    return jax.tree.map(
        lambda x: _checked(x, plan) if is_named_array(x) or is_array(x) else Other(x), results, is_leaf=is_named_array
    )


def _checked(x: Any, plan: _Plan) -> Any:
    """Returns a result that goes by its names, if JAX knows it to be the same wherever its axes are not divided."""
    if is_named_array(x) and len(x.names) != len(x.array.shape):
        raise ValueError(
            f"a result of `shard_map` with axes {format_axes(x.names)} is an array of shape {tuple(x.array.shape)}: a "
            "collective such as `jax.lax.all_gather` has changed its axes; use `tiled=True`, or name the array anew"
        )
    if plan.out_specs is not None or not plan.check_vma:
        return x
    stated = {axis for entry in _out_spec(x, plan) for axis in get_entry_axes(entry)}
    differs = sorted(jax.typeof(plain(x)).manual_axis_type.varying & plan.manual - stated)
    if differs:
        what = format_shape(x) if is_named_array(x) else f"a plain array of shape {x.shape}"
        raise ValueError(
            f"the result {what} may differ from device to device along mesh axis {differs[0]!r}, to which none of its "
            f"axes is mapped; combine the parts with `jax.lax.psum(x, {differs[0]!r})` or the like, or pass "
            "`check_vma=False` if you know that it does not differ"
        )
    return x


def _out_specs(returned: Any, plan: _Plan) -> Any:
    """Returns the specs of what the function returned, those given and those that follow from names."""
    given, treedef = plan.out_specs or ((None,), None)
    spec = given[0] if treedef is None else jax.tree.unflatten(treedef, given)

    def specs(spec: P | None, subtree: Any) -> Any:
        return jax.tree.map(lambda x: _out_spec(x, plan) if spec is None else spec, subtree, is_leaf=_is_whole)

    try:
        return jax.tree.map(specs, spec, returned, is_leaf=lambda x: x is None)
    except ValueError:
        raise ValueError("the `out_specs` of `shard_map` do not fit what the function returned") from None


def _is_whole(x: Any) -> bool:
    return is_named_array(x) or isinstance(x, Other)


def _out_spec(x: Any, plan: _Plan) -> P:
    if not is_named_array(x):
        return P()
    return _part(resolve_spec(x.names, (None,) * len(x.names), plan.results, plan.mesh), plan)
