"""`ScanCheckpointPolicy` with the constructors of Haliax's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax

from ..named import _transforms


@dataclass(frozen=True)
class ScanCheckpointPolicy(_transforms.ScanCheckpointPolicy):
    """Policy for `remat=`: which values a loop saves for the backward pass; see `axonym.ScanCheckpointPolicy`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.ScanCheckpointPolicy.from_bool_or_str("offload").save_inputs
        'offload'
    """

    offload_block_internals: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Checks the options; a policy that is `simple` and `nested` gets the defaults for all but `nested`.

        A policy that saves values within a step also saves the carries, from which it computes the others.
        """
        if not self.save_carries and (self.save_block_internals or self.offload_block_internals):
            object.__setattr__(self, "save_carries", True)
        if self.simple and self.nested:
            defaults = ScanCheckpointPolicy()
            for option in ("simple", "save_carries", "save_inputs", "save_block_internals", "offload_block_internals"):
                object.__setattr__(self, option, getattr(defaults, option))
        super().__post_init__()

    @staticmethod
    def from_bool_or_str(remat_policy: bool | str) -> "ScanCheckpointPolicy":
        """Returns the policy for True, False or one of offload, recompute, full, save_all and nested.

        Raises:
            ValueError: If it is another string.
        """
        if isinstance(remat_policy, bool):
            return ScanCheckpointPolicy(simple=True) if remat_policy else _DISABLED
        if remat_policy not in _BY_NAME:
            raise ValueError(f"a checkpoint policy is a boolean or one of {', '.join(_BY_NAME)}, not {remat_policy!r}")
        return _BY_NAME[remat_policy]

    @staticmethod
    def _mk(remat_policy: Any) -> Any:
        """Returns the policy for a `ScanCheckpointSpec`; the name is Haliax's, which programs call."""
        if isinstance(remat_policy, _transforms.ScanCheckpointPolicy):
            return remat_policy
        return ScanCheckpointPolicy.from_bool_or_str(remat_policy)

    def checkpoint(self, carry_name: str, input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that saves what this policy says, with these names for its carries and inputs."""
        if self.disable:
            return callable
        policy = None if self.simple else self._make_policy(carry_name, input_name)
        return eqx.filter_checkpoint(callable, prevent_cse=self.prevent_cse, policy=policy)

    def _make_policy(self, carry_name: str, input_name: str) -> Any:
        if self.save_block_internals is True:
            return jax.checkpoint_policies.everything_saveable
        saved, offloaded = list(self.save_block_internals or ()), list(self.offload_block_internals)
        for name, option in ((carry_name, self.save_carries), (input_name, self.save_inputs)):
            if option == "offload":
                offloaded.append(name)
            elif option:
                saved.append(name)
        if not offloaded:
            return jax.checkpoint_policies.save_only_these_names(*saved)
        return jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=saved,
            names_which_can_be_offloaded=offloaded,
            offload_src="device",
            offload_dst="pinned_host",
        )


_DISABLED = ScanCheckpointPolicy(save_carries=True, save_inputs=True, save_block_internals=True, disable=True)
_BY_NAME = {
    "offload": ScanCheckpointPolicy(save_carries="offload", save_inputs="offload"),
    "recompute": ScanCheckpointPolicy(save_carries=False, save_inputs=False),
    "full": ScanCheckpointPolicy(save_carries=False, save_inputs=False),
    "save_all": ScanCheckpointPolicy(save_carries=True, save_inputs=True, save_block_internals=True),
    "nested": ScanCheckpointPolicy(nested=True),
}

ScanCheckpointSpec: TypeAlias = (
    ScanCheckpointPolicy | bool | Literal["offload", "recompute", "full", "save_all", "nested"]
)
