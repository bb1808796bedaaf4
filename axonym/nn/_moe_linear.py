"""The linear layer with weights for each expert, and `ragged_dot`, products of rows with the matrix of their group."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..named._ambient import constrain_sharding
from ..named._arguments import check_dtype
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, AxisSpec, Names, intern_names, parse_axes, parse_one_axis
from ..named._axis_layout import MeshAxes
from ..named._base import check_named, format_shape, is_traced, with_array
from ..named._broadcasting import cached_jit, check_matching_sizes
from ..named._creation import ones, zeros
from ..named._format import format_axes
from ..named._named_call import enter_function_scope, named_call
from ..named._shape._rearrange import rearrange
from ._gather_parameter import gather_parameter
from ._initializer import draw_scaled_normal
from ._inputs import check_input, format_layer_axes
from ._layer import Layer
from ._map_shards import check_sharded_apart, map_shards


class MoELinear(Layer):
    """A linear map for each expert, applied to rows that are sorted by expert: `ragged_dot(x, weight, sizes, In)`.

    Attributes:
        weight: Array with the expert axis, the input axes and the output axes.
        bias: Array with the expert axis and the output axes, or None.
        Experts: The expert axis.
        In: The axes contracted.
        Out: The axes of the result in their place.
    """

    weight: NamedArray
    bias: NamedArray | None
    Experts: Axis = eqx.field(static=True)
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)

    @staticmethod
    def init(
        Experts: Axis,
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
    ) -> "MoELinear":
        """Makes a layer with random weights.

        Args:
            Experts: The expert axis.
            In: The input axes, one or several.
            Out: The output axes, one or several; none may also be an input axis.
            key: A random key.
            use_bias: Whether to add a bias, zero at first, of each expert.
            out_first: Whether the output axes of the weight come before its input axes, which takes a transpose in each
                call.
            init_scale: Factor of the weights, which are drawn from a normal distribution truncated at three standard
                deviations and scaled by `1 / sqrt(number of inputs)`.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If an axis is both input and output, or is the expert axis.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Experts, Embed, Mlp = nym.make_axes(experts=2, embed=4, mlp=8)
            >>> layer = nym.nn.MoELinear.init(Experts, Embed, Mlp, key=jax.random.key(0))
            >>> sizes = nym.named([1, 2], Experts)  # one row for the first expert, then two for the second
            >>> layer(nym.ones({"token": 3, "embed": 4}), sizes).shape
            (token: 3, mlp: 8)
        """
        Experts, inputs, outputs = parse_one_axis(Experts), parse_axes(In), parse_axes(Out)
        names = [axis.name for axis in (Experts, *inputs, *outputs)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(
                f"{_format_moe_linear(Experts, inputs, outputs)}: axis {twice[0]!r} is given twice; give one of them "
                "another name with `alias`"
            )
        axes = (*outputs, *inputs) if out_first else (*inputs, *outputs)
        weight = draw_scaled_normal(key, (Experts, *axes), inputs, init_scale, None)
        return MoELinear(weight, zeros((Experts, *outputs)) if use_bias else None, Experts, inputs, outputs)

    @named_call
    def __call__(self, x: NamedArray, group_sizes: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies to each row the map of its expert.

        Args:
            x: Array with the input axes and one more, whose elements, the rows, are sorted by expert.
            group_sizes: Integer array with the expert axis: the number of rows of each expert.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axis of the rows, then the output axes. Rows after those of the last expert are zero.

        Raises:
            ValueError: If `x` lacks an input axis, has an output axis, or has more or less than one axis of rows, or
                `group_sizes` has other axes than the expert axis.
        """
        name = _format_moe_linear(self.Experts, self.In, self.Out)
        check_input(name, x, self.In, (self.Experts.name, *(axis.name for axis in self.Out)))
        check_input(f"{name} (group sizes)", group_sizes, self.Experts)
        result = ragged_dot(x, gather_parameter(self.weight), group_sizes, self.In)
        if self.bias is None:
            return result
        # The bias of each row is a product as well, with inputs of size 1, so that it is not gathered either.
        inputs = tuple(axis.resize(1) for axis in self.In) or (Axis("in", 1),)
        bias = gather_parameter(self.bias)
        weight = rearrange(bias.broadcast_axis(inputs), (self.Experts, *inputs, ...))
        rows = ones((result.axes[0], *inputs), bias.dtype)
        return constrain_sharding(result + ragged_dot(rows, weight, group_sizes, inputs))


def _format_moe_linear(experts: Axis, inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> str:
    return f"MoELinear ({experts.name}: {experts.size}, {format_layer_axes(inputs)} -> {format_layer_axes(outputs)})"


def ragged_dot(
    x: NamedArray,
    weight: NamedArray,
    group_sizes: NamedArray,
    axis: AxisSelection,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> NamedArray:
    """Multiplies rows, which are sorted by group, with the matrix of their group; see `jax.lax.ragged_dot`.

    Where the axis of the groups is sharded, each device multiplies the rows of its own groups, and the results are
    added up: rows travel, `weight` does not. Where the axis of the rows is sharded, each device multiplies its own.

    Args:
        x: Array with the axes to sum over and one more: that of the rows.
        weight: Array with the axis of the groups, the axes to sum over and any others.
        group_sizes: Integer array with the axis of the groups: the number of rows of each group.
        axis: The axes to sum over.
        precision: As for `jax.lax.ragged_dot`.
        preferred_element_type: Element type in which the sum is kept and returned.

    Returns:
        Array with the axis of the rows, then the other axes of `weight`. Rows after those of the last group are zero.

    Raises:
        ValueError: If an array lacks an axis or has more, a name has two sizes, the axes of rows and groups are
            sharded over the same mesh axis, or a group size is negative or the sizes add up to more than the rows.
            Sizes within a compiled function are not checked.
        TypeError: If the group sizes are not integers, or an operand is not a named array.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"token": 3, "embed": 2})
        >>> weight = nym.named([[1.0, 1.0], [5.0, 5.0]], ("experts", "embed"))
        >>> nym.nn.ragged_dot(x, weight, nym.named([1, 2], "experts"), axis="embed").array
        Array([ 2., 10., 10.], dtype=float32)
    """
    rows, group, summed, others = _find_ragged_axes(x, weight, group_sizes, axis)
    _check_group_sizes(group_sizes, x.resolve_axis(rows))
    check_dtype(preferred_element_type, "ragged_dot: `preferred_element_type`")
    x, weight = rearrange(x, (rows, *summed)), rearrange(weight, (group, *summed, *others))
    names = intern_names((rows, *others))
    with enter_function_scope("ragged_dot", summed, others):
        call = cached_jit(_compute_ragged_dot, x.names, weight.names, names, precision, preferred_element_type)
        return constrain_sharding(with_array(x, call(x.array, weight.array, group_sizes.array), names))


def _find_ragged_axes(
    x: NamedArray, weight: NamedArray, group_sizes: NamedArray, axis: AxisSelection
) -> tuple[str, str, Names, Names]:
    """Returns the names of the axes of rows and of groups, those summed over, and the others of the weight."""
    for operand in (x, weight, group_sizes):
        check_named(operand)
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise TypeError(f"The group sizes of `ragged_dot` are integers, not {group_sizes.dtype}.")
    if len(group_sizes.names) != 1:
        raise ValueError(f"the group sizes of `ragged_dot` have one axis, not {format_shape(group_sizes)}")
    shown = f"cannot multiply {format_shape(x)} and {format_shape(weight)} by `ragged_dot`"
    (group,) = group_sizes.names
    check_matching_sizes(*((one.names, one.array.shape) for one in (x, weight, group_sizes)))
    dims = check_input(shown, x, axis)
    summed = tuple(x.names[dim] for dim in dims)
    check_input(shown, weight, (group, *summed))
    rows = tuple(name for name in x.names if name not in summed)
    if len(rows) != 1 or rows[0] in weight.names:
        raise ValueError(
            f"{shown}: the first has one axis besides {format_axes(summed)} that the second lacks, its rows, not "
            f"{format_axes(rows)}; merge several with `flatten_axes`"
        )
    return rows[0], group, summed, tuple(name for name in weight.names if name not in (group, *summed))


def _check_group_sizes(group_sizes: NamedArray, rows: Axis) -> None:
    """Raises a ValueError if sizes that are known before the program runs do not fit the rows."""
    if is_traced(group_sizes.array) or not getattr(group_sizes.array, "is_fully_addressable", True):
        return
    sizes = np.asarray(group_sizes.array)
    if (sizes < 0).any():
        raise ValueError(f"the group sizes of `ragged_dot` are numbers of rows, at least 0, but one is {sizes.min()}")
    if sizes.sum() > rows.size:
        raise ValueError(
            f"the group sizes of `ragged_dot` {format_shape(group_sizes)} add up to {sizes.sum()} rows, more than the "
            f"axis ({rows}) has"
        )


def _compute_ragged_dot(
    own: Names, others: Names, names: Names, precision: Any, dtype: Any, x: Any, weight: Any, group_sizes: Any
) -> Any:
    multiply = functools.partial(_multiply_shards, own, others, precision, dtype)
    return map_shards(multiply, (x, weight, group_sizes), (own, others, ("",)), (names,))[0]


def _multiply_shards(
    own: Names,
    others: Names,
    precision: Any,
    dtype: Any,
    mesh_axes: MeshAxes,
    x: Any,
    weight: Any,
    group_sizes: Any,
) -> tuple[Any]:
    """Multiplies the rows of one device that belong to its groups, and adds up the results of all devices."""
    rows, *summed = own
    check_sharded_apart("ragged_dot", mesh_axes, (rows, *others))
    outs, size = weight.shape[len(own) :], x.shape[0]
    common = jnp.result_type(x, weight)
    weight = weight.astype(common).reshape(weight.shape[0], math.prod(x.shape[1:]), -1)
    x = x.astype(common).reshape(size, -1)
    first = jax.lax.axis_index(mesh_axes[rows]) * size if rows in mesh_axes else 0
    ends = jnp.clip(jnp.cumsum(group_sizes) - first, 0, size)  # of the groups, among the rows of this device
    multiply = functools.partial(jax.lax.ragged_dot, precision=precision, preferred_element_type=dtype)
    starts = jnp.concatenate([jnp.zeros_like(ends, shape=1), ends[:-1]])
    if others[0] in mesh_axes:
        at = jax.lax.axis_index(mesh_axes[others[0]]) * weight.shape[0]
        starts, ends = (jax.lax.dynamic_slice_in_dim(each, at, weight.shape[0]) for each in (starts, ends))
        is_own = (jnp.arange(size) < ends[-1] - starts[0])[:, None]
        product = multiply(jnp.where(is_own, jnp.roll(x, -starts[0], 0), 0), weight, ends - starts)
        product = jnp.roll(jnp.where(is_own, product, 0), starts[0], 0)
    else:
        product = multiply(x, weight, ends - starts)
    added = tuple(axis for name in (others[0], *summed) for axis in mesh_axes.get(name, ()))
    return ((jax.lax.psum(product, added) if added else product).reshape(size, *outs),)
