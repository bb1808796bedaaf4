"""The mixture of experts: gated layers, of which each token is sent to a few."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._arguments import check_function, check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, Names, axis_name, parse_one_axis, parse_selection
from ..named._axis_layout import MeshAxes
from ..named._base import format_shape, with_array
from ..named._creation import named
from ..named._format import format_axes
from ..named._named_call import named_call
from ..named._reduce._reductions import mean, softmax
from ..named._shape._rearrange import rearrange
from ..random import split
from ._activations import silu
from ._expert_dispatch import Product, mix_all_tokens, mix_within_capacity
from ._gather_parameter import gather_parameter
from ._inputs import check_input, format_layer_axes
from ._layer import Layer
from ._map_shards import check_sharded_apart, map_shards
from ._moe_linear import MoELinear
from ._router import Router, Routing, load_balance_loss, router_z_loss


class MixtureMetrics(eqx.Module):
    """The auxiliary losses of one call of a mixture of experts, over all its tokens on all devices, and its load.

    Attributes:
        load_balance_loss: See `load_balance_loss`; a float32 array without axes. Add it to the loss of the model times
            a factor, such as 0.01.
        router_z_loss: See `router_z_loss`; the factor is about 0.001.
        tokens_per_expert: How many tokens chose each expert, integers with the expert axis.
        dropped_fraction: The share of all choices that were dropped because their expert was full; 0 without a
            capacity.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> axes = nym.make_axes(embed=4, mlp=8, experts=4)
        >>> layer = nym.nn.MixtureOfExperts.init(*axes, 2, key=jax.random.key(0))
        >>> _, metrics = layer(nym.ones({"pos": 3, "embed": 4}))
        >>> metrics.tokens_per_expert.sum().item(), metrics.dropped_fraction.item()
        (6, 0.0)
    """

    load_balance_loss: NamedArray
    router_z_loss: NamedArray
    tokens_per_expert: NamedArray
    dropped_fraction: NamedArray


class MixtureOfExperts(Layer):
    """Experts, which are gated layers such as SwiGLU, and a router, which sends each token to `k` of them.

    The result is the sum of `down(activation(gate(x)) * up(x))` over the chosen experts of each token, times their
    weights. Where the expert axis is sharded, tokens travel to the experts, and weights of experts do not travel.

    Attributes:
        router: The router.
        gate: Array with the expert axis, the input axis and the hidden axis; None if the experts have no gate.
        up: Array with the same axes.
        down: Array with the expert axis, the hidden axis and the input axis.
        Embed: The axis of the tokens' vectors.
        Mlp: The hidden axis.
        activation: The function of the gate, or of `up` if there is no gate.
        capacity_factor: The capacity of each expert relative to an equal share of the choices; None if all are kept.
        capacity_axes: The names of the axes along which tokens compete for the capacity; None for all.
    """

    router: Router
    gate: NamedArray | None
    up: NamedArray
    down: NamedArray
    Embed: Axis = eqx.field(static=True)
    Mlp: Axis = eqx.field(static=True)
    activation: Callable[[Any], Any] = eqx.field(static=True)
    capacity_factor: float | None = eqx.field(static=True)
    capacity_axes: Names | None = eqx.field(static=True)

    @staticmethod
    def init(
        Embed: Axis,
        Mlp: Axis,
        Experts: Axis,
        top_k: int | Axis,
        *,
        key: jax.Array,
        activation: Callable[[Any], Any] = silu,
        gated: bool = True,
        softmax: Literal["before", "after"] = "before",
        normalize: bool = True,
        capacity_factor: float | None = None,
        capacity_axis: AxisSelection | None = None,
        init_scale: float = 1.0,
    ) -> "MixtureOfExperts":
        """Makes a router and experts with random weights.

        Args:
            Embed: The axis of the tokens' vectors.
            Mlp: The hidden axis of each expert.
            Experts: The expert axis.
            top_k: As for `Router.init`.
            key: A random key.
            activation: Function of a named array.
            gated: Whether experts multiply `activation(gate(x))` with `up(x)`, or only take `activation(up(x))`.
            softmax: As for `Router.init`.
            normalize: As for `Router.init`.
            capacity_factor: If given, each expert takes at most this factor times an equal share of the choices,
                rounded up, and drops the others, whose tokens get nothing from it. First choices of all tokens come
                before second ones, and earlier tokens before later ones. If None, nothing is dropped.
            capacity_axis: The axes along which tokens compete for the capacity: each element of the other axes, such as
                each sequence of a batch, is a group with a capacity of its own. All axes of the tokens if None.
            init_scale: As for `Linear.init`.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If there are fewer experts than are chosen, or `capacity_factor` is not positive.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Mlp, Experts = nym.make_axes(embed=4, mlp=8, experts=4)
            >>> layer = nym.nn.MixtureOfExperts.init(Embed, Mlp, Experts, 2, key=jax.random.key(0))
            >>> out, metrics = layer(nym.ones({"batch": 2, "pos": 3, "embed": 4}))
            >>> out.shape, metrics.tokens_per_expert.sum().item()
            ((batch: 2, pos: 3, embed: 4), 12)
        """
        Embed, Mlp, Experts = parse_one_axis(Embed), parse_one_axis(Mlp), parse_one_axis(Experts)
        if capacity_factor is not None:
            what = "MixtureOfExperts: `capacity_factor`, where None drops no token,"
            capacity_factor = check_number(what, capacity_factor, above=0)
        check_function("MixtureOfExperts: `activation`", activation, "axonym.nn.silu")
        keys = split(key, 4)
        options: dict[str, Any] = {"use_bias": False, "init_scale": init_scale}
        router = Router.init(
            Embed, Experts, top_k, key=keys[0], softmax=softmax, normalize=normalize, init_scale=init_scale
        )
        gate = MoELinear.init(Experts, Embed, Mlp, key=keys[1], **options).weight if gated else None
        up = MoELinear.init(Experts, Embed, Mlp, key=keys[2], **options).weight
        down = MoELinear.init(Experts, Mlp, Embed, key=keys[3], **options).weight
        axes = None if capacity_axis is None else tuple(map(axis_name, parse_selection(capacity_axis)))
        return MixtureOfExperts(router, gate, up, down, Embed, Mlp, activation, capacity_factor, axes)

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> tuple[NamedArray, MixtureMetrics]:
        """Sends each token to its experts.

        Args:
            x: Array with the axis of the tokens' vectors and any others: those of the tokens.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axes and the element type of `x`, and the metrics.

        Raises:
            ValueError: If `x` lacks the axis of the vectors or one of the capacity, or has another axis of the layer;
                or if an axis of the tokens is sharded over a mesh axis of the hidden axis or along the capacity.
        """
        Experts, TopK = self.router.Experts, self.router.TopK
        check_input(format_layer(self), x, self.Embed, (Experts.name, self.Mlp.name, TopK.name))
        tokens = self._order_tokens(x)
        gate = () if self.gate is None else ((self.gate, (Experts, self.Embed, self.Mlp)),)
        experts = (*gate, (self.up, (Experts, self.Embed, self.Mlp)), (self.down, (Experts, self.Mlp, self.Embed)))
        weights = [rearrange(gather_parameter(weight), axes) for weight, axes in experts]
        arrays = [rearrange(x, (*tokens, self.Embed)), gather_parameter(self.router.weight), *weights]
        names = [tuple("" if name == self.Embed.name else name for name in one.names) for one in arrays]
        names[1] = ("", "")  # each device chooses the experts of its tokens, with the entire router

        def mix_shards(mesh_axes: MeshAxes, *shards: Any) -> tuple[Any, ...]:
            self._check_capacity_axes(x, mesh_axes)
            local, router, *matrices = [with_array(*pair) for pair in zip(arrays, shards, strict=True)]
            routing = dataclasses.replace(self.router, weight=router)(local)
            return self._mix_shard(mesh_axes, local, routing, [one.array for one in matrices])

        plain = [one.array for one in arrays]
        mixed, *found = map_shards(mix_shards, plain, names, ((*tokens, ""), (), ("",), ("",), ()))
        result = rearrange(with_array(x, mixed, arrays[0].names), x.names)
        return constrain_sharding(result), self._make_metrics(*found)

    def _order_tokens(self, x: NamedArray) -> Names:
        """Returns the names of the axes of the tokens, those along which tokens compete for the capacity last."""
        tokens = tuple(name for name in x.names if name != self.Embed.name)
        if self.capacity_factor is None or self.capacity_axes is None:
            return tokens
        check_input(f"{format_layer(self)} (capacity)", x, self.capacity_axes)
        competing = tuple(name for name in tokens if name in self.capacity_axes)
        return (*(name for name in tokens if name not in competing), *competing)

    def _mix_shard(
        self, mesh_axes: MeshAxes, x: NamedArray, routing: Routing, matrices: list[Any]
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Sends the tokens of one device to their experts.

        Returns:
            The result, and the mean of the z-loss, the mean probabilities, the choices of each expert and the number of
            dropped choices over all devices.
        """
        tokens, Experts = x.names[:-1], self.router.Experts
        check_sharded_apart(format_layer(self), mesh_axes, (*tokens, self.Mlp.name))
        token_axes = tuple(axis for name in tokens for axis in mesh_axes.get(name, ()))
        expert_axes = mesh_axes.get(Experts.name, ())
        options = (self._apply_experts(x, matrices), Experts.size, expert_axes, token_axes)
        common = jnp.result_type(x.array, *matrices)
        # The rest of the sums: over experts that tokens were not sent to, and over the hidden axis.
        added = tuple(axis for axis in expert_axes if axis not in token_axes) + mesh_axes.get(self.Mlp.name, ())
        # Gradients are added up once, for tokens, and not for the rows of each of their choices and each matrix.
        own = jax.lax.pcast(x.array.astype(common), added, to="varying")
        arrays = (own, routing.weights.array, routing.experts.array)
        dropped = jnp.zeros((), int)
        if self.capacity_factor is None:
            mixed = mix_all_tokens(*options, *(each.reshape(-1, each.shape[-1]) for each in arrays))
        else:
            size, capacity = self._find_capacity(x)
            grouped = [each.reshape(-1, size, each.shape[-1]) for each in arrays]
            mixed, dropped = mix_within_capacity(*options, capacity, *grouped)
        mixed = mixed.astype(x.dtype).reshape(x.array.shape)
        probabilities = mean(softmax(routing.logits, Experts), tokens).array
        z_loss = router_z_loss(routing.logits, Experts).array
        counts = jnp.bincount(routing.experts.array.reshape(-1), length=Experts.size)
        if token_axes:
            z_loss, probabilities = jax.lax.pmean((z_loss, probabilities), token_axes)
            counts, dropped = jax.lax.psum((counts, dropped), token_axes)
        return jax.lax.psum(mixed, added) if added else mixed, z_loss, probabilities, counts, dropped

    def _apply_experts(self, x: NamedArray, matrices: list[Any]) -> Callable[[Product, Any], Any]:
        """Returns a function that applies the experts to rows, by a product with one matrix for each expert."""
        *first, down = [each.astype(jnp.result_type(x.array, *matrices)) for each in matrices]

        def apply(multiply: Product, rows: Any) -> Any:
            names = (*(f"row{at}" for at in range(rows.ndim - 1)), self.Mlp.name)
            hidden = [with_array(x, multiply(rows, each), names) for each in first]
            active = self.activation(hidden[0])
            return multiply((active if self.gate is None else active * hidden[1]).array, down)

        return apply

    def _check_capacity_axes(self, x: NamedArray, mesh_axes: MeshAxes) -> None:
        """Raises a ValueError if tokens of the whole array, not of a shard, compete along an axis that is sharded."""
        if self.capacity_factor is None:
            return
        for name in self._list_competing_axes(x):
            if name in mesh_axes:
                raise ValueError(
                    f"{format_layer(self)}: tokens compete for the capacity along axis {name!r}, which is sharded over "
                    f"{format_axes(mesh_axes[name])}; name other axes of {format_shape(x)} with `capacity_axis`, or "
                    f"map {name!r} to None"
                )

    def _list_competing_axes(self, x: NamedArray) -> Names:
        if self.capacity_axes is not None:
            return self.capacity_axes
        return tuple(name for name in x.names if name != self.Embed.name)

    def _find_capacity(self, x: NamedArray) -> tuple[int, int]:
        """Returns how many tokens compete for the capacity, and the capacity."""
        size = math.prod(x.shape[name] for name in self._list_competing_axes(x))
        share = size * self.router.TopK.size / self.router.Experts.size
        return size, min(size, math.ceil(share * (self.capacity_factor or 0)))

    def _make_metrics(self, z_loss: Any, probabilities: Any, counts: Any, dropped: Any) -> MixtureMetrics:
        Experts = self.router.Experts
        tokens_per_expert = named(counts, Experts)
        return MixtureMetrics(
            load_balance_loss(tokens_per_expert, named(probabilities, Experts), Experts),
            named(z_loss, ()),
            constrain_sharding(tokens_per_expert),
            named(dropped / counts.sum(), ()),
        )


def format_layer(layer: MixtureOfExperts) -> str:
    """Formats the axes of a mixture of experts for errors."""
    return f"MixtureOfExperts ({format_layer_axes((layer.Embed, layer.Mlp, layer.router.Experts))})"
