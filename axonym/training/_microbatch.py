"""`microbatch`: runs a function of a batch on parts of it, one after another: gradient accumulation."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._ground.arguments import check_callable
from .._ground.caches import jit_inline
from .._ground.jax_compat import has_spmd_axes
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, AxisSelector, axis_name
from ..named._axis_layout import get_axes_of_type, get_entry_axes
from ..named._base import format_shape, with_array
from ..named._reduced_types import set_reduced_axes
from ..named._shape._flatten import unflatten_axis
from ..named._sharding import find_varying_axes, get_sharding
from ..named._transforms import check_legacy_keys, fold_in_number, is_random_key


P = ParamSpec("P")
R = TypeVar("R")

_PARTS = "axonym microbatches"


def microbatch(
    fn: Callable[P, R],
    axis: AxisSelector,
    count: int,
    *,
    dtype: Any = None,
    reduce_once: bool | str | Sequence[str] = False,
) -> Callable[P, R]:
    """Makes a function that runs `fn` on parts of a batch, one after another, and averages what it returns.

    For the function that `jax.value_and_grad` makes of a mean loss, it returns the value and the gradient of the whole
    batch, and takes the memory for the activations of one part: gradient accumulation. The sums have the sharding of
    the gradients; under `fsdp`, that of the stored parameters.

    The batch stays where it is: microbatch `i` has the examples `i`, `i + count`, `i + 2 * count`..., so that each
    device has its share of each of them. Parameters that are sharded over mesh axes of the batch are gathered in each
    microbatch, and their gradients scattered. Over the other mesh axes of the batch, those of replicas, gradients are
    added up once, after the last microbatch, if all mesh axes are Explicit: in JAX's types they are `unreduced` until
    then. On other meshes they are added up in each microbatch, and so they are if JAX has no rule for such types in
    something that `fn` does, such as computing the norm of a gradient.

    Args:
        fn: A function whose results are averages over the batch, such as what `jax.value_and_grad` returns.
        axis: The axis of the batch. Named arrays among the arguments that have it are split; everything else is the
            same for all microbatches, except that the number of the microbatch is folded into typed random keys.
        count: The number of microbatches; 1 calls `fn` with the arguments as they are.
        dtype: The dtype in which floating-point results are added up, such as `jnp.float32` for gradients in bfloat16;
            that of each result if None.
        reduce_once: When gradients are added up over the devices of the batch. False: as above, and if `count` is 1, as
            `fn` does it. Names of mesh axes of replicas, such as `"replica"`: over replicas once, also if `count` is 1.
            All axes of the mesh must be Explicit then, and where JAX has no rule it raises an error. True: everything
            once, on any mesh. `fn` runs as in `shard_map` on the examples of one device then, and parameters that are
            sharded over mesh axes of the batch are whole. That does not work within a `vmap` over an Auto mesh axis,
            such as that of the replicas of `diloco`.

    Returns:
        A function of the same arguments, which returns trees like those of `fn`: averages of floating-point arrays,
        sums of integers such as counts, and for modules with a method `accumulate`, such as
        [`OverwriteWithGradient`][axonym.quantization.OverwriteWithGradient], what that returns.

    Raises:
        TypeError: If `fn` cannot be called, `count` is not an integer, or `reduce_once` is neither a boolean nor names
            of mesh axes. When called, if an argument may be a legacy random key, a plain uint32 array such as
            `jax.random.PRNGKey` returns; pass `jax.random.key(seed)`.
        ValueError: If `count` is less than 1. When called, if no argument has the axis, its size is not divisible by
            `count`, a result has the axis, one with a method `accumulate` is to be reduced once, `reduce_once` names a
            mesh axis that does not shard the batch, or one of a mesh whose axes are not all Explicit, or it is True
            within a `vmap` over an Auto mesh axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> def loss(weight, x):
        ...     return (nym.dot(x, weight, axis="embed") ** 2).mean().scalar()
        >>> weight, x = nym.arange(nym.Axis("embed", 4)) / 4, nym.ones({"batch": 8, "embed": 4})
        >>> value, gradient = nym.microbatch(jax.value_and_grad(loss), "batch", 2)(weight, x)
        >>> value.item(), gradient
        (2.25, NamedArray(float32, embed: 4, [3., 3., 3., 3.]))
    """
    check_callable("microbatch", fn)
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"`count` is the number of microbatches, an integer; it was {count!r}")
    if count < 1:
        raise ValueError(f"`count` is the number of microbatches, 1 or more; it was {count}")
    once_axes: tuple[str, ...] | None = None  # if None, they depend on the mesh
    if not isinstance(reduce_once, bool):
        names: object = [reduce_once] if isinstance(reduce_once, str) else reduce_once
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"`reduce_once` is a boolean or names of mesh axes; it was {reduce_once!r}")
        once_axes = tuple(names)
    name = axis_name(axis)
    call_part = cast(Callable[..., Any], fn)  # with rebuilt arguments, whose types no checker knows

    @functools.wraps(fn)
    def run_microbatches(*args: P.args, **kwargs: P.kwargs) -> R:
        if count == 1 and reduce_once is False:
            return fn(*args, **kwargs)
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=is_named_array)
        batches = [leaf for leaf in leaves if _has_axis(leaf, name)]
        if not batches:
            raise ValueError(f"`microbatch` splits axis {name!r}, which no argument has")
        check_legacy_keys((args, kwargs), "microbatch", fn)

        def run(leaves: list[Any], first: Any) -> Any:
            """Returns the averages of what `fn` returns for each part; `first` is the number of the first one."""
            split = {i: _split_batch(leaf, name, count) for i, leaf in enumerate(leaves) if _has_axis(leaf, name)}
            key_positions = [i for i, leaf in enumerate(leaves) if i not in split and is_random_key(leaf)]

            def call(number: Any, arrays: list[Any]) -> Any:
                part_leaves = [*leaves]
                for position in key_positions:
                    part_leaves[position] = fold_in_number(leaves[position], number)
                for position, array in zip(split, arrays, strict=True):
                    part_leaves[position] = with_array(leaves[position], array)
                args, kwargs = jax.tree.unflatten(treedef, part_leaves)
                return call_part(*args, **kwargs)

            # Inlined, so that JAX traces `fn` once for the shapes of its results and for the loop.
            return _accumulate(jit_inline(call), list(split.values()), first, name, count, dtype)

        def run_all(leaves: list[Any]) -> Any:
            if count > 1:
                return run(leaves, 0)
            args, kwargs = jax.tree.unflatten(treedef, leaves)
            return jax.tree.map(_add_up_devices, call_part(*args, **kwargs))

        names = batches[0].names
        sharding = get_sharding(names, batches[0].array.shape)
        if sharding is None:
            return run_all(leaves)
        mesh_axes = get_entry_axes(sharding.spec.partitions[names.index(name)])
        if reduce_once is True:
            return _reduce_once(run, leaves, name, count, mesh_axes) if mesh_axes else run_all(leaves)
        is_explicit = all(axis_type == AxisType.Explicit for axis_type in sharding.mesh.axis_types)
        if once_axes is not None:
            _check_once_axes(once_axes, mesh_axes, name, is_explicit)
        if is_explicit and once_axes != ():
            try:
                return run_all([_type_reduced(leaf, name, mesh_axes, sharding.mesh) for leaf in leaves])
            except Exception as error:
                if once_axes:
                    error.add_note(
                        f"With `reduce_once={reduce_once!r}` parameters of `microbatch` are typed `reduced` and their "
                        "gradients `unreduced`; if JAX refuses that, do this after `microbatch`, or leave it out."
                    )
                    raise
                # JAX lacks a rule for these types, in words that differ; a fault of `fn` is raised below.
        return run_all(leaves)

    return run_microbatches


def _check_once_axes(once_axes: tuple[str, ...], mesh_axes: tuple[str, ...], name: str, is_explicit: bool) -> None:
    for mesh_axis in once_axes:
        if mesh_axis not in mesh_axes:
            raise ValueError(
                f"`reduce_once` names mesh axis {mesh_axis!r}, but axis {name!r} is sharded over "
                f"{', '.join(mesh_axes) or 'none'}; name some of these"
            )
    if once_axes and not is_explicit:
        raise ValueError(
            f"`reduce_once` with the name of mesh axis {once_axes[0]!r} needs a mesh whose axes are all Explicit; make "
            "it with `axis_types='explicit'`, or pass True"
        )


def _type_reduced(leaf: Any, name: str, mesh_axes: tuple[str, ...], mesh: Any) -> Any:
    """Returns a parameter typed so that its gradient stays `unreduced` over mesh axes of the batch."""
    if not is_named_array(leaf) or _has_axis(leaf, name) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    array = leaf.array
    if jax.typeof(array).sharding.mesh.empty:  # made without the mesh
        array = jax.reshard(array, NamedSharding(mesh, PartitionSpec(*(None,) * array.ndim)))
    return with_array(leaf, set_reduced_axes(array, mesh_axes))


def _reduce_once(run: Callable[..., Any], leaves: list[Any], name: str, count: int, mesh_axes: tuple[str, ...]) -> Any:
    """Returns the averages of what a function returns on each device for its own part of the batch."""
    if has_spmd_axes():  # which JAX adds to the specs of a `shard_map` over other mesh axes
        raise ValueError(
            "`reduce_once=True` of `microbatch` does not work within a `vmap` over an Auto mesh axis, as `diloco` maps "
            "over its replicas; make this mesh axis Explicit, or leave `reduce_once` out"
        )
    positions = [i for i, leaf in enumerate(leaves) if is_named_array(leaf) or isinstance(leaf, jax.Array)]
    arrays = [_place_shards(leaves[position], name, mesh_axes) for position in positions]
    specs: list[PartitionSpec] = []
    for array in arrays:
        entries = [mesh_axes if dim_name == name else None for dim_name in getattr(array, "names", ())]
        specs.append(PartitionSpec(*entries) if mesh_axes in entries else PartitionSpec())

    def run_shards(*arrays: Any) -> Any:
        shards = [*leaves]
        for position, array in zip(positions, arrays, strict=True):
            shards[position] = array if _has_axis(array, name) else _vary(array, mesh_axes)
        # Microbatches are numbered across devices, so that random keys differ between devices too.
        results = run(shards, jax.lax.axis_index(mesh_axes) * count)
        return jax.tree.map(lambda x: _average_shards(x, mesh_axes), results, is_leaf=_accumulates)

    sharded = jax.shard_map(run_shards, axis_names=set(mesh_axes), in_specs=tuple(specs), out_specs=PartitionSpec())
    return sharded(*arrays)


def _place_shards(x: Any, name: str, mesh_axes: tuple[str, ...]) -> Any:
    """Returns an array sharded over Explicit mesh axes as `shard_map` needs it: over these along the batch alone."""
    array = x.array if is_named_array(x) else x
    sharding = jax.typeof(array).sharding
    entries = [
        tuple(axis for axis in get_entry_axes(entry) if axis not in mesh_axes) for entry in sharding.spec.partitions
    ]
    if _has_axis(x, name):
        dim = x.names.index(name)
        explicit_axes = get_axes_of_type(sharding.mesh, AxisType.Explicit)
        entries[dim] = (*(axis for axis in mesh_axes if axis in explicit_axes), *entries[dim])
    spec = PartitionSpec(*(axes or None for axes in entries))
    if spec == sharding.spec:
        return x
    placed = jax.reshard(array, NamedSharding(sharding.mesh, spec))
    return with_array(x, placed) if is_named_array(x) else placed


def _vary(x: Any, mesh_axes: tuple[str, ...]) -> Any:
    """Returns arrays that may differ between devices, so that JAX does not add up their gradients between these."""
    return jax.tree.map(lambda array: jax.lax.pcast(array, mesh_axes, to="varying"), x) if mesh_axes else x


def _average_shards(x: Any, mesh_axes: tuple[str, ...]) -> Any:
    if _accumulates(x):
        raise ValueError(f"`reduce_once` averages arrays, but the function returns a {type(x).__name__}; leave it out")
    x = _vary(x, tuple(axis for axis in mesh_axes if axis not in find_varying_axes(x)))
    # Integers are sums, such as counts of examples.
    return jax.lax.pmean(x, mesh_axes) if jnp.issubdtype(x.dtype, jnp.inexact) else jax.lax.psum(x, mesh_axes)


def _has_axis(leaf: Any, name: str) -> bool:
    return isinstance(leaf, NamedArray) and name in leaf.names


def _split_batch(x: NamedArray, name: str, count: int) -> Any:
    """Returns the array of the microbatches, which come first; each has every `count`th example."""
    dim = x.names.index(name)
    size = x.array.shape[dim]
    if size % count:
        raise ValueError(f"axis {name!r} has size {size}, which is not divisible by {count} microbatches")
    split = unflatten_axis(x, name, (Axis(name, size // count), Axis(_PARTS, count)))
    return jnp.moveaxis(split.array, dim + 1, 0)


def _accumulate(call: Callable[..., Any], arrays: list[Any], first: Any, name: str, count: int, dtype: Any) -> Any:
    """Returns the averages of what a function of a number and one part of each array returns."""
    # The shapes that `jax.eval_shape` returns have no shardings on meshes of Auto and Explicit axes; types have.
    types: list[Any] = []
    jax.eval_shape(lambda: types.append(jax.tree.map(jax.typeof, call(first, [array[0] for array in arrays]))))
    shapes = types[0]
    for leaf in jax.tree.leaves(shapes, is_leaf=is_named_array):
        if _has_axis(leaf, name):
            raise ValueError(
                f"the function of `microbatch` returns an array with axis {name!r}, {format_shape(leaf)}; return "
                "averages over it, or sums of integers"
            )

    def add_result(total: Any, result: Any) -> Any:
        return total.accumulate(result) if _accumulates(total) else total + jnp.asarray(result).astype(total.dtype)

    def add_results(totals: Any, part: tuple[Any, list[Any]]) -> tuple[Any, None]:
        return jax.tree.map(add_result, totals, call(*part), is_leaf=_accumulates), None

    def divide(total: Any, shape: Any) -> Any:
        total = jax.tree.map(_add_up_devices, total)
        is_sum = _accumulates(total) or not jnp.issubdtype(shape.dtype, jnp.inexact)
        return total if is_sum else (total / count).astype(shape.dtype)

    zeros = jax.tree.map(lambda shape: _make_zeros(shape, dtype), shapes, is_leaf=_accumulates)
    totals, _ = jax.lax.scan(add_results, zeros, (first + jnp.arange(count), arrays))
    return jax.tree.map(divide, totals, shapes, is_leaf=_accumulates)


def _add_up_devices(x: Any) -> Any:
    """Returns a result that is `unreduced` over mesh axes added up over their devices, and without `reduced`."""
    if not isinstance(x, jax.Array):
        return x
    sharding = jax.typeof(x).sharding
    if not sharding.spec.unreduced and not sharding.spec.reduced:
        return x
    return jax.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec.partitions)))


def _accumulates(x: Any) -> bool:
    return callable(getattr(type(x), "accumulate", None))


def _make_zeros(shape: Any, dtype: Any) -> Any:
    """Returns zeros that are sharded, and vary in `shard_map`, as what they stand for."""
    if _accumulates(shape):
        return jax.tree.map(lambda array: _make_zeros(array, array.dtype), shape)
    if not jnp.issubdtype(shape.dtype, jnp.inexact):  # a sum may not fit the dtype of its parts
        dtype = jnp.promote_types(shape.dtype, jnp.int32)
    zeros = jnp.zeros(shape.shape, dtype or shape.dtype, out_sharding=shape.sharding)
    return _vary(zeros, tuple(shape.manual_axis_type.varying))
