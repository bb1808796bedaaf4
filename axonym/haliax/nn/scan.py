"""`haliax.nn.scan`: layers of one kind, stacked along an axis and applied by a scan, or in a sequence."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

import equinox as eqx

from ... import nn
from ...named._axis import Axis
from ...nn._stack import call_layer
from ...state_dict import stack_state_dict, unstack_state_dict
from ...state_dict._from_state_dict import read_state_dict
from ...state_dict._to_state_dict import flatten_modules, map_children, unflatten_modules
from .._adapt import adapt
from .._array import convert_result
from .._checkpoint import ScanCheckpointPolicy as ScanCheckpointPolicy, ScanCheckpointSpec as ScanCheckpointSpec


M = TypeVar("M", bound=eqx.Module)
M_co = TypeVar("M_co", covariant=True)
M_contra = TypeVar("M_contra", contravariant=True)
C = TypeVar("C")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")

# The names that programs import from Haliax.
_stack_state_dict = stack_state_dict
_unstack_state_dict = unstack_state_dict


class ModuleInit(Protocol[M_co]):
    """A function that makes a module, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> make: hax.nn.scan.ModuleInit[hax.nn.RmsNorm] = hax.nn.RmsNorm.init
    """

    def __call__(self, *args: Any, **kwargs: Any) -> M_co:
        """Makes the module."""
        ...


class FoldFunction(Protocol[M_contra, P, C]):
    """A function of a layer and a carry that returns the next carry, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> step: hax.nn.scan.FoldFunction = lambda layer, carry: layer(carry)
    """

    def __call__(self, module: M_contra, carry: C, *args: P.args, **kwargs: P.kwargs) -> C:
        """Applies a layer."""
        ...


class ScanFunction(Protocol[M_contra, C, P, R_co]):
    """A function of a layer and a carry that returns the next carry and an output, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> step: hax.nn.scan.ScanFunction = lambda layer, carry: (layer(carry), carry)
    """

    def __call__(self, module: M_contra, carry: C, *args: P.args, **kwargs: P.kwargs) -> tuple[C, R_co]:
        """Applies a layer."""
        ...


class VmapFunction(Protocol[M_contra, P, R_co]):
    """A function of a layer and its arguments, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> apply: hax.nn.scan.VmapFunction = lambda layer, x: layer(x)
    """

    def __call__(self, module: M_contra, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Applies a layer."""
        ...


class BlockFoldable(Protocol[M]):
    """What `Stacked` and `BlockSeq` can do, for annotations; see `axonym.nn.LayerStack`.

    Example:
        >>> import axonym.haliax as hax
        >>> blocks: hax.nn.scan.BlockFoldable
    """

    Block: Axis

    @classmethod
    def init(
        cls, Block: Axis, module: type[M], *, gradient_checkpointing: Any = False, prevent_cse: bool = False
    ) -> ModuleInit[Any]:
        """Returns a function that makes the layers."""
        ...

    def fold(self, init: Any, *args: Any, unroll: Any = None, **kwargs: Any) -> Any:
        """Applies the layers in order."""
        ...

    def scan(self, init: Any, *extra_args: Any, unroll: Any = None, **extra_kwargs: Any) -> Any:
        """Applies the layers in order and collects their outputs."""
        ...

    def fold_via(self, fn: Callable[..., Any], *, unroll: Any = None) -> Callable[..., Any]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers."""
        ...

    def scan_via(self, fn: Callable[..., Any], *, unroll: Any = None) -> Callable[..., Any]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers."""
        ...

    def vmap_via(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that applies `fn(layer, *args)` to each layer."""
        ...

    def unstacked(self) -> Sequence[M]:
        """Returns the layers as separate modules."""
        ...

    def get_layer(self, index: int) -> M:
        """Returns one layer."""
        ...


class _HaliaxLayers(Generic[M]):
    """Mixin that gives the container of layers after it among the base classes Haliax's arguments and results.

    Type checkers do not know which container that is, so what is used of it is typed `Any`.
    """

    @classmethod
    def init(
        cls,
        Block: Axis,
        module: Callable[..., M],
        *,
        gradient_checkpointing: Any = False,
        prevent_cse: bool | None = None,
    ) -> Callable[..., Any]:
        """Returns a function that makes the layers.

        Args:
            Block: The layer axis.
            module: The class of a layer; its `init` makes a layer.
            gradient_checkpointing: A policy, its name or a boolean.
            prevent_cse: The `prevent_cse` of the policy; as in `gradient_checkpointing` if None.

        Returns:
            A function of the arguments of `module.init`.
        """
        policy = ScanCheckpointPolicy._mk(gradient_checkpointing)
        if prevent_cse is not None:
            policy = dataclasses.replace(policy, prevent_cse=prevent_cse)
        parent: Any = super()
        return adapt(parent.init(Block, module, gradient_checkpointing=policy))

    @property
    def Layers(self) -> Axis:
        """The layer axis."""
        stack: Any = self
        return stack.Block

    def fold(self, init: Any, *args: Any, unroll: Any = None, **kwargs: Any) -> Any:
        """Applies the layers in order."""
        return self.fold_via(call_layer, unroll=unroll)(init, *args, **kwargs)

    def scan(self, init: Any, *extra_args: Any, unroll: Any = None, **extra_kwargs: Any) -> Any:
        """Applies the layers in order and collects their outputs."""
        return self.scan_via(call_layer, unroll=unroll)(init, *extra_args, **extra_kwargs)

    def vmap(self, *extra_args: Any, **extra_kwargs: Any) -> Any:
        """Applies each layer to the same arguments; each layer gets its slice of arrays that have the layer axis."""
        return self.vmap_via(call_layer)(*extra_args, **extra_kwargs)

    def fold_via(self, fn: Callable[..., Any], *, unroll: Any = None) -> Callable[..., Any]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers."""
        parent: Any = super()
        return adapt(parent.fold_via(fn, unroll=1 if unroll is None else unroll))

    def scan_via(self, fn: Callable[..., Any], *, unroll: Any = None) -> Callable[..., Any]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers."""
        parent: Any = super()

        def call_step(*args: Any, **kwargs: Any) -> Any:
            returned = fn(*args, **kwargs)
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise ValueError("a layer applied by `scan` must return a pair: the next carry and an output")
            return returned

        return adapt(parent.scan_via(call_step, unroll=1 if unroll is None else unroll))

    def vmap_via(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that applies `fn(layer, *args)` to each layer, and stacks the results."""
        parent: Any = super()
        return adapt(parent.vmap_via(fn))

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> Self:
        """Returns the layers with the arrays of a state dict, which keep their dtype; other keys are ignored."""
        parent: Any = super()
        with read_state_dict(state_dict, prefix, strict=False, dtypes="keep") as reader:
            return convert_result(parent.from_state_dict(reader, prefix))

    def flatten_for_export(self) -> Self:
        """Returns the layers with merged axes, as PyTorch has them."""
        return map_children(flatten_modules, self)

    def unflatten_from_export(self, template: Self) -> Self:
        """Returns the layers with the axes of a template."""
        return map_children(unflatten_modules, self, template)


class Stacked(_HaliaxLayers[M], nn.Stacked[M]):
    """Layers of the same kind along an axis; see `axonym.nn.Stacked`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> Layers, Embed, Mlp = hax.make_axes(layers=3, embed=4, mlp=5)
        >>> stack = hax.nn.Stacked.init(Layers, hax.nn.Linear)(Embed, Mlp, key=jax.random.split(jax.random.key(0), 3))
        >>> stack.Layers, stack.vmap(hax.ones(Embed)).shape
        (Axis(name='layers', size=3), {'layers': 3, 'mlp': 5})
    """


class BlockSeq(_HaliaxLayers[M], nn.BlockSeq[M]):
    """Layers in a Python sequence; see `axonym.nn.BlockSeq`.

    Example:
        >>> import axonym.haliax as hax
        >>> Layers, Embed = hax.make_axes(layers=3, embed=4)
        >>> layers = hax.nn.BlockSeq.init(Layers, hax.nn.RmsNorm)(Embed)
        >>> layers.fold(hax.ones(Embed)).shape, len(layers.blocks)
        ({'embed': 4}, 3)
    """
