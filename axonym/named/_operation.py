"""`run_operation`: the one call by which operations on plain arrays with names are sharded.

An operation says what it takes and what it returns, by name, and which axes it needs whole. How the arrays are sharded
follows: by the active mapping or, without one, on an Explicit mesh, as the operands are.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._ground.jax_compat import is_traced
from ._axis import Names
from ._axis_layout import AxisLayout, MeshAxes, count_parts, get_axes_of_type, get_entry_axes, read_layout
from ._sharding import get_mesh_axes, get_out_sharding, mapping_context, reshard_by_name


def run_operation(
    fn: Callable[..., Any],
    operands: Sequence[Names],
    results: Names | list[Names] | None,
    *arrays: Any,
    whole: Collection[str] = (),
    by_compiler: bool = False,
    misses_auto_shards: bool = False,
    sizes: tuple[int, ...] | None = None,
) -> Any:
    """Calls a function of plain arrays, and shards what it returns by name.

    JAX infers how most results are sharded. Where one of its functions has to be told, by `out_sharding`, `fn` gets
    the sharding from `get_out_sharding`.

    Args:
        fn: Function of the arrays. It returns an array, or a tree of arrays.
        operands: The names of each array; "" stands for an axis whose sharding says nothing about the results.
        results: The names of the first axes of all results, or a list with those of each. Other axes, and those named
            "", are not sharded: axes of other sizes than in the operands, for example. None leaves all results as JAX
            infers them.
        *arrays: The arrays.
        whole: Names of axes that `fn` needs whole: on an Explicit mesh they are replicated for it, and in results
            of sizes that their mesh axes do not divide.
        by_compiler: Whether JAX lacks sharding rules for `fn` or its gradient, so that on an Explicit mesh the compiler
            has to shard it.
        misses_auto_shards: Whether XLA computes `fn` wrongly along axes in `whole` that are sharded over Auto mesh
            axes, so that they have to be replicated there, too; see `docs/known-faults.md`.
        sizes: The sizes that belong to `results`, if all results have the same. Otherwise `by_compiler` traces `fn`
            once more to find them.

    Returns:
        The results, sharded by their names on an Explicit mesh.

    Raises:
        ValueError: If two operands shard an axis differently and no mapping says how it is sharded, or the size of an
            axis of a result is not divisible by its mesh axes.
    """
    with use_operand_layout(operands, arrays):
        if whole:
            arrays = tuple(replicate_axes(x, names, whole) for x, names in zip(arrays, operands, strict=True))
        if misses_auto_shards:
            replicated = dict.fromkeys(whole, ())
            arrays = tuple(shard_over_auto(x, names, replicated) for x, names in zip(arrays, operands, strict=True))
        if by_compiler and results is not None:
            fn = _shard_by_compiler(fn, operands, results, arrays, whole, sizes)
        result = fn(*arrays)
        if results is None:
            return result
        auto_whole = whole if misses_auto_shards else ()
        place_result = functools.partial(_place_result, whole=whole, auto_whole=auto_whole)
        if isinstance(results, list):
            return tuple(place_result(array, names) for array, names in zip(result, results, strict=True))
        return jax.tree.map(lambda array: place_result(array, results), result)


class _OperandLayout(NamedTuple):
    """An `Ambient` for a single operation without an active mapping: axes are sharded as they are in the operands."""

    layout: AxisLayout
    mapping = policy = None  # what `current_mapping` and `current_policy` return meanwhile

    def constrain(self, array: Any, names: Names) -> Any:
        return array

    def gather(self, array: Any, names: Names, reduced: bool) -> Any:
        return array

    def get_out_sharding(self, names: Names, sizes: tuple[int | None, ...]) -> NamedSharding:
        return self.layout.sharding(names, sizes)

    get_sharding = get_out_sharding

    def get_mesh_axes(self, name: str, size: int) -> tuple[str, ...]:
        return ()

    def find_stages(self, name: str, size: int) -> None:
        return None


def use_operand_layout(operands: Sequence[Names], arrays: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which names are sharded as in these arrays; see `run_operation`.

    It changes nothing under an active mapping, or where no array is sharded over Explicit mesh axes.
    """
    if mapping_context.value is not None:
        return _NO_CONTEXT
    layout = _merge_layouts(operands, arrays)
    return _NO_CONTEXT if layout is None else mapping_context(_OperandLayout(layout))


_NO_CONTEXT = contextlib.nullcontext()


def _merge_layouts(operands: Sequence[Names], arrays: Sequence[Any]) -> AxisLayout | None:
    """Returns the layout of the names of all operands, None if none of them is sharded."""
    layout = None
    for names, array in zip(operands, arrays, strict=True):
        # Operands without names may be numbers or functions.
        if names and any(jax.typeof(array).sharding.spec.partitions):
            operand_layout = read_layout(names, array)
            layout = operand_layout if layout is None else layout.merge(operand_layout)
    return layout


def replicate_axes(array: Any, names: Names, whole: Collection[str]) -> Any:
    """Returns an array that is not sharded over Explicit mesh axes along these axes."""
    if not names:
        return array
    sharding = jax.typeof(array).sharding
    spec = sharding.spec.partitions
    entries = [None if name in whole else entry for name, entry in zip(names, spec, strict=True)]
    if entries == [*spec]:
        return array
    # The mesh is the array's own, which may not be the active one.
    return jax.reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*entries)))


def shard_over_auto(array: Any, names: Names, mesh_axes: MeshAxes) -> Any:
    """Returns a traced array whose axes of these names are sharded over these of the Auto mesh axes, and no others.

    The compiler shards the other axes, and the cotangent is sharded in the same way.
    """
    mesh = jax.typeof(array).sharding.mesh
    auto_axes = get_axes_of_type(mesh, AxisType.Auto)
    if not auto_axes or not is_traced(array) or not any(name in mesh_axes for name in names):
        return array
    entries: list[Any] = [PartitionSpec.UNCONSTRAINED] * array.ndim
    for dim, name in enumerate(names):
        if name in mesh_axes:
            entries[dim] = tuple(axis for axis in mesh_axes[name] if axis in auto_axes) or None
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*entries)))


def _shard_by_compiler(
    fn: Callable[..., Any],
    operands: Sequence[Names],
    results: Names | list[Names],
    arrays: Sequence[Any],
    whole: Collection[str],
    sizes: tuple[int, ...] | None,
) -> Callable[..., Any]:
    """Returns a function that the compiler shards on an Explicit mesh; `fn` itself on any other.

    Mesh axes that are Manual, as in `shard_map` over some of the mesh axes, stay so: JAX cannot make them Auto.
    """
    meshes = [jax.typeof(array).sharding.mesh for array, names in zip(arrays, operands, strict=True) if names]
    mesh = next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)

    def find_sharding(names: Names, shape: tuple[int, ...]) -> NamedSharding | None:
        # XLA would shard the inside of `fn` over the mesh axes of results, so what is needed whole is whole there, too.
        names = _pad_names(tuple("" if name in whole else name for name in names), len(shape))
        sharding = get_out_sharding(names, shape)
        if sharding is None and mesh is not None:  # the arrays are on a mesh that is not the active one
            layout = _merge_layouts(operands, arrays) or AxisLayout(source="operands")
            sharding = layout._replace(mesh=mesh).sharding(names, shape)
        return sharding

    # Operands that are on no mesh need no rules. JAX would return their cotangents on an Auto mesh, where they
    # cannot be added up. Without operands, as where numbers are drawn, the mapping alone decides.
    if mesh is None and any(operands):
        return fn
    if sizes is not None and not isinstance(results, list):
        shardings = find_sharding(results, sizes)
    else:
        # Without their shardings, for which `fn` may lack rules.
        shapes = jax.eval_shape(fn, *[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays])
        if isinstance(results, list):
            shardings = tuple(find_sharding(names, x.shape) for names, x in zip(results, shapes, strict=True))
        else:
            shardings = jax.tree.map(lambda x: find_sharding(results, x.shape), shapes)
    sharding = next(iter(jax.tree.leaves(shardings)), None)
    if sharding is None:  # no mesh axis is Explicit
        return fn
    axes = get_axes_of_type(sharding.mesh, AxisType.Explicit)
    return jax.sharding.auto_axes(fn, axes=axes, out_sharding=shardings)


def name_dims(array: Any) -> Names:
    """Returns names for the dimensions of a plain array that has none."""
    return tuple(map(str, range(array.ndim)))


def _place_result(array: Any, names: Names, whole: Collection[str], auto_whole: Collection[str]) -> Any:
    """Returns a result sharded by its names: all on an Explicit mesh, those in `auto_whole` on an Auto one."""
    names = _pad_names(names, array.ndim)
    for dim, name in enumerate(names):
        sharding = get_out_sharding((name,), (None,)) if name in whole else None
        if sharding is not None and array.shape[dim] % count_parts(get_entry_axes(sharding.spec[0]), sharding.mesh):
            names = (*names[:dim], "", *names[dim + 1 :])
    array = reshard_by_name(array, names)
    if auto_whole:
        # Replicated first, or XLA would shard `fn` itself as it shards the result.
        array = shard_over_auto(array, names, dict.fromkeys(auto_whole, ()))
        sizes = dict(zip(names, array.shape, strict=True))
        mapped = {name: get_mesh_axes(name, sizes[name]) for name in auto_whole if name in sizes}
        if any(mapped.values()):
            array = shard_over_auto(array, names, mapped)
    return array


def _pad_names(names: Names, ndim: int) -> Names:
    return (*names, *("",) * (ndim - len(names)))
