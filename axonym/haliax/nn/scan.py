"""`haliax.nn.scan`: layers of one kind, stacked along an axis and applied by a scan."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import equinox as eqx

from ... import nn
from ...named._axis import Axis
from .._adapt import make_getattr
from .._array import convert_result
from .._checkpoint import ScanCheckpointPolicy as ScanCheckpointPolicy
from .._functions import vmap


M = TypeVar("M", bound=eqx.Module)
M_co = TypeVar("M_co", covariant=True)


class BlockFoldable(Protocol[M_co]):
    """What `Stacked` and other containers of layers can do, for annotations.

    Example:
        >>> import axonym.haliax as hax
        >>> blocks: hax.nn.scan.BlockFoldable
    """

    Block: Axis

    def fold(self, init: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies the layers in order."""
        ...

    def scan(self, init: Any, *extra_args: Any, **extra_kwargs: Any) -> Any:
        """Applies the layers in order and collects their outputs."""
        ...

    def unstacked(self) -> Any:
        """Returns the layers as separate modules."""
        ...


class Stacked(nn.Stacked[M]):
    """Layers of the same kind along an axis; see `axonym.nn.Stacked`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> Layers, Embed, Mlp = hax.make_axes(layers=3, embed=4, mlp=5)
        >>> stack = hax.nn.Stacked.init(Layers, hax.nn.Linear)(Embed, Mlp, key=jax.random.split(jax.random.key(0), 3))
        >>> stack.Layers, stack.vmap(hax.ones(Embed)).shape
        (Axis(name='layers', size=3), {'layers': 3, 'mlp': 5})
    """

    @classmethod
    def init(
        cls, Block: Axis, module: type[M], *, gradient_checkpointing: Any = False, prevent_cse: bool | None = None
    ) -> Callable[..., "Stacked[M]"]:
        """Returns a function that makes the layers; `gradient_checkpointing` is a policy, its name or a boolean."""
        policy = ScanCheckpointPolicy._mk(gradient_checkpointing)
        make = super().init(Block, module, gradient_checkpointing=policy)
        return lambda *args, **kwargs: convert_result(make(*args, **kwargs))  # pyright: ignore[reportReturnType]

    @property
    def Layers(self) -> Axis:
        """The layer axis."""
        return self.Block

    def fold(self, init: Any, *args: Any, unroll: Any = None, **kwargs: Any) -> Any:
        """Applies the layers in order."""
        return super().fold(init, *args, unroll=1 if unroll is None else unroll, **kwargs)

    def scan(self, init: Any, *extra_args: Any, unroll: Any = None, **extra_kwargs: Any) -> Any:
        """Applies the layers in order and collects their outputs."""
        return super().scan(init, *extra_args, unroll=1 if unroll is None else unroll, **extra_kwargs)

    def fold_via(self, fn: Callable[..., Any], *, unroll: Any = None) -> Callable[..., Any]:
        """Returns a function that folds `fn(layer, carry, *args)` over the layers."""
        return super().fold_via(fn, unroll=1 if unroll is None else unroll)

    def scan_via(self, fn: Callable[..., Any], *, unroll: Any = None) -> Callable[..., Any]:
        """Returns a function that scans `fn(layer, carry, *args)` over the layers."""
        return super().scan_via(fn, unroll=1 if unroll is None else unroll)

    def vmap_via(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that applies `fn(layer, *args)` to each layer, with the same arguments."""
        return lambda *args, **kwargs: vmap(
            fn, self.Block, args=(True, *(False for _ in args)), kwargs=dict.fromkeys(kwargs, False)
        )(self.stacked, *args, **kwargs)

    def vmap(self, *extra_args: Any, **extra_kwargs: Any) -> Any:
        """Applies each layer to the same arguments."""
        return self.vmap_via(lambda layer, *args, **kwargs: layer(*args, **kwargs))(*extra_args, **extra_kwargs)


__getattr__ = make_getattr("haliax.nn.scan", "BlockSeq FoldFunction ScanFunction VmapFunction ModuleInit")
