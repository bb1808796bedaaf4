"""`policies="auto"`: which named values of layers to save, those first that save most seconds for their bytes."""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from ...named._transforms._checkpoint import ScanCheckpointPolicy
from .._machine._hardware import Hardware
from .._plan._candidate import Candidate
from .._program._named_program import trace_named_program
from .._step_time._link_model import LinkModel
from ._screening import Prospect, Screening
from ._step_variants import vary_policy


AUTO = "auto"
RECOMPUTE_LAYERS: Mapping[str, Any] = {"layers": True}
_SAVE_ALL = "none"
_KNOWN = {_SAVE_ALL: False, **RECOMPUTE_LAYERS, "offload": "offload"}
_HELD_PART = 0.85  # of the memory, which arguments and saved values may take; a large step holds a tenth besides
_MOST_NAMES = 12  # the step is traced for each pair of them


def propose_policies(
    prospect: Prospect, hardware: Hardware, make_link_model: Callable[[Candidate], LinkModel]
) -> dict[str, Any]:
    """Returns the policies to try, by name: those that `Stacked` knows, and those that save named values.

    Of the names that a step gives to values of its layers, that one comes first which saves most seconds of computing
    and waiting for each byte that it takes on a device, then the one which does beside it, and so on. Those that do not
    fit into the memory come last. There is a policy for each number of names.

    Args:
        prospect: A candidate for the step whose layers save nothing.
        hardware: The devices.
        make_link_model: As for `Screening`.
    """
    policies: dict[str, Any] = {**_KNOWN}
    names = [*prospect.variant.named_program.checkpoint_names][:_MOST_NAMES]
    saved_names: tuple[str, ...] = ()
    while names:
        gains: list[tuple[float, str, Prospect]] = []
        for name in names:
            saving_prospect = _save_names(prospect, (*saved_names, name), hardware, make_link_model)
            seconds = prospect.estimate.cost - saving_prospect.estimate.cost
            held_bytes = saving_prospect.held_bytes - prospect.held_bytes
            gains.append((seconds / max(held_bytes, 1.0), name, saving_prospect))
        memory = _HELD_PART * hardware.hbm_available
        gain, name, prospect = max(gains, key=lambda gain: (gain[0] > 0, gain[2].held_bytes <= memory, *gain[:2]))
        if gain <= 0:
            break
        names.remove(name)
        saved_names = *saved_names, name
        policies[f"save {', '.join(saved_names)}"] = ScanCheckpointPolicy(save_block_internals=saved_names)
    return policies


def _save_names(
    prospect: Prospect, names: tuple[str, ...], hardware: Hardware, make_link_model: Callable[[Candidate], LinkModel]
) -> Prospect:
    """Returns a candidate whose layers save values with these names."""
    variant = vary_policy(prospect.variant, ScanCheckpointPolicy(save_block_internals=names))
    if variant is None:
        return prospect
    variant = replace(variant, named_program=trace_named_program(variant.fn, variant.args, variant.gather_policy))
    return Screening(variant, hardware, make_link_model).screen(prospect.estimate.candidate)


def describe_policy(name: str, policies: Mapping[str, Any]) -> str:
    """Returns a note on how to make layers with a policy of `propose_policies`."""
    text = repr(policies[name])
    if isinstance(policies[name], ScanCheckpointPolicy):
        text = f"nym.ScanCheckpointPolicy(save_block_internals={[*policies[name].save_block_internals]})"
    return f"policy {name!r} is `gradient_checkpointing={text}`"


def describe_unsaved(best: str, compiled: Set[str], policies: Mapping[str, Any]) -> Iterator[str]:
    """Yields a note if no policy that saves named values was compiled, because the step fits without recomputing.

    Args:
        best: The name of the policy of the best candidate, which fits.
        compiled: The names of the policies that were compiled.
        policies: Those of `propose_policies`.
    """
    saving = {name for name, policy in policies.items() if isinstance(policy, ScanCheckpointPolicy)}
    if saving and not saving & compiled and best == _SAVE_ALL:
        yield "policies that save named values were not compiled, since the step fits without recomputing"
