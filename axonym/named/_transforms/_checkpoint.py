"""Which intermediate values a loop over layers keeps for its backward pass."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from ..._ground.formats import format_value, suggest_name
from .._static_result import is_array


T = TypeVar("T")

_CARRY, _INPUTS = "axonym carry", "axonym inputs"
_OFFLOAD = "offload"


@dataclass(frozen=True)
class ScanCheckpointPolicy:
    """Policy for `remat=`: which values a loop saves at each step for the backward pass; others are recomputed.

    By default it saves the carries, which pass from step to step, and slices the arguments again.

    Args:
        save_carries: Whether carries are saved; `"offload"` saves them in host memory. If not, the backward pass runs
            the entire loop again, and saves them then.
        save_inputs: Whether slices of the arguments are saved, or offloaded, as copies.
        save_block_internals: Whether everything computed within a step is saved, or the names of the values to save;
            see `tree_checkpoint_name`.
        offload_block_internals: The names of values computed within a step to save in host memory.
        prevent_cse: As for `jax.checkpoint`; `scan` and `Stacked` do not need it, and `BlockSeq` always sets it.
        disable: Whether to leave everything to JAX, which saves whatever it needs.
        simple: Whether to checkpoint each step as `remat=True` does, ignoring the other options.
        nested: Whether to run the loop as nested loops, where only the outer loop saves its carries: about
            2 sqrt(n) of n carries are in memory at once, and each step is computed once more. `save_carries="offload"`
            then saves those of the outer loop in host memory. An integer is the number of steps in an inner loop; one
            that divides n avoids copies of the arguments, and True chooses such a number where one is near sqrt(n).

    Raises:
        TypeError: If an option has the wrong type.
        ValueError: If `save_block_internals=True` is combined with `offload_block_internals`.

    Example:
        >>> import axonym as nym
        >>> policy = nym.ScanCheckpointPolicy(save_block_internals=["hidden"])
        >>> def step(carry, row):
        ...     hidden = nym.tree_checkpoint_name(nym.exp(row), "hidden")
        ...     return carry + nym.sin(hidden)
        >>> fold = nym.fold(step, "pos", remat=policy)
        >>> nym.grad(lambda x: fold(nym.named(0.0, ()), x))(nym.zeros({"pos": 2}))
        NamedArray(float32, pos: 2, [0.54030..., 0.54030...])
    """

    save_carries: bool | Literal["offload"] = True
    save_inputs: bool | Literal["offload"] = False
    save_block_internals: bool | Sequence[str] = False
    offload_block_internals: Sequence[str] = ()
    prevent_cse: bool = False
    disable: bool = False
    simple: bool = False
    nested: bool | int = False

    def __post_init__(self) -> None:
        """Checks the options, and converts lists to tuples, which are hashable."""
        for option in ("save_carries", "save_inputs"):
            if getattr(self, option) not in (True, False, _OFFLOAD):
                raise TypeError(f"`{option}` is True, False or 'offload', not {format_value(getattr(self, option))}.")
        for option in ("save_block_internals", "offload_block_internals"):
            names = getattr(self, option)
            if isinstance(names, bool):
                continue
            is_sequence = isinstance(names, Sequence) and not isinstance(names, str)
            if not is_sequence or not all(isinstance(name, str) for name in names):
                raise TypeError(f"`{option}` takes a sequence of names, not {format_value(names)}.")
            object.__setattr__(self, option, tuple(names))
        if not isinstance(self.nested, int) or self.nested < 0:
            raise TypeError(
                f"`nested` is True, False or the number of steps in an inner loop, not {format_value(self.nested)}."
            )
        if self.nested is not True and self.nested == 1:  # inner loops of one step would save nothing
            object.__setattr__(self, "nested", False)
        if self.save_block_internals is True and self.offload_block_internals:
            raise ValueError(
                "`save_block_internals=True` saves everything; give the names of values to save if others are offloaded"
            )


Remat: TypeAlias = bool | str | ScanCheckpointPolicy | Callable[..., Any]

CHECKPOINT_POLICIES = {
    "full": ScanCheckpointPolicy(save_carries=False),
    "nested": ScanCheckpointPolicy(nested=True),
    "offload": ScanCheckpointPolicy(save_carries=_OFFLOAD),
    "recompute": ScanCheckpointPolicy(save_carries=False),
    "save_all": ScanCheckpointPolicy(save_block_internals=True),
}

Policy: TypeAlias = ScanCheckpointPolicy | Callable[..., Any] | None


def parse_remat(remat: Remat) -> Policy:
    """Returns the policy given as `remat=`: an Axonym or a JAX policy, or None if nothing is recomputed."""
    if isinstance(remat, bool):
        return ScanCheckpointPolicy() if remat else None
    if isinstance(remat, str):
        if remat not in CHECKPOINT_POLICIES:
            raise ValueError(
                f"what a loop recomputes is one of {', '.join(map(repr, CHECKPOINT_POLICIES))}, a boolean or a policy, "
                f"such as `jax.checkpoint_policies.dots_saveable`, not {format_value(remat)}"
                f"{suggest_name(remat, tuple(CHECKPOINT_POLICIES))}"
            )
        return CHECKPOINT_POLICIES[remat]
    if isinstance(remat, ScanCheckpointPolicy):
        return None if remat.disable else remat
    if not callable(remat):
        raise TypeError(f"`remat` is a boolean, a string or a policy, not {format_value(remat)}.")
    return remat


def checkpoint_step(body: Callable[..., Any], policy: Policy, prevent_cse: bool = False) -> Callable[..., Any]:
    """Returns a step of a loop, a function of its carry and slices, with a checkpoint policy.

    Outside of a loop of JAX, where the compiler would merge the recomputed step with the first, `prevent_cse` is True.
    """
    if policy is None:
        return body
    if not isinstance(policy, ScanCheckpointPolicy):
        return jax.checkpoint(body, prevent_cse=prevent_cse, policy=policy)
    prevent_cse = prevent_cse or policy.prevent_cse
    if policy.simple:
        return jax.checkpoint(body, prevent_cse=prevent_cse)

    def run_named_step(carry: Any, slices: Any) -> Any:
        carry = tree_checkpoint_name(carry, _CARRY) if policy.save_carries == _OFFLOAD else carry
        return body(carry, tree_checkpoint_name(slices, _INPUTS) if policy.save_inputs else slices)

    return jax.checkpoint(run_named_step, prevent_cse=prevent_cse, policy=_make_jax_policy(policy))


def _make_jax_policy(policy: ScanCheckpointPolicy) -> Callable[..., Any] | None:
    if policy.save_block_internals is True:
        return jax.checkpoint_policies.everything_saveable
    saved, offloaded = list(policy.save_block_internals or ()), list(policy.offload_block_internals)
    if policy.save_inputs:
        (offloaded if policy.save_inputs == _OFFLOAD else saved).append(_INPUTS)
    if policy.save_carries == _OFFLOAD:
        offloaded.append(_CARRY)
    if not offloaded:
        return jax.checkpoint_policies.save_only_these_names(*saved) if saved else None
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=saved,
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )


def tree_checkpoint_name(tree: T, name: str) -> T:
    """Gives the arrays of a tree a name by which a policy can save them for the backward pass.

    See `jax.ad_checkpoint.checkpoint_name`.

    Args:
        tree: Any tree of arrays.
        name: The name, as in `ScanCheckpointPolicy` or a policy of `jax.checkpoint_policies`.

    Returns:
        The tree with the same values.

    Example:
        >>> import axonym as nym
        >>> nym.tree_checkpoint_name({"hidden": nym.ones({"embed": 2}), "rate": 0.1}, "hidden")
        {'hidden': NamedArray(float32, embed: 2, [1., 1.]), 'rate': 0.1}
    """
    return jax.tree.map(lambda x: checkpoint_name(x, name) if is_array(x) else x, tree)


def checkpoint_scan(
    scan: Callable[..., Any], body: Callable[..., Any], policy: Policy, steps: int
) -> Callable[..., Any]:
    """Returns a loop with a checkpoint policy: a function of the initial carry and the arrays to slice."""
    step_policy, block_policy, inner = _split_policy(policy, steps)
    run_steps = functools.partial(scan, checkpoint_step(body, step_policy))
    if block_policy is None:
        run = functools.partial(run_steps, length=steps)
    else:
        run = functools.partial(_scan_nested, run_steps, block_policy, steps, inner)
    return jax.checkpoint(run, prevent_cse=policy.prevent_cse) if _is_recomputed(policy) else run


def checkpoint_loop(body: Callable[..., Any], policy: Policy, slices: Sequence[Any]) -> Callable[..., Any]:
    """Returns a Python loop with a checkpoint policy: a function of the initial carry.

    Args:
        body: Function of the number of the step, the carry and the arrays of the step, which returns the next carry
            and a result.
        policy: The policy; the compiler is always kept from merging what is recomputed.
        slices: The arrays of each step.

    Returns:
        Function that returns the final carry and a list of the results.
    """
    steps = len(slices)
    step_policy, block_policy, inner = _split_policy(policy, steps)

    def run_steps(indices: Sequence[int], carry: Any, slices: Sequence[Any]) -> tuple[Any, list[Any]]:
        results: list[Any] = []
        for index, arrays in zip(indices, slices, strict=True):
            step = checkpoint_step(functools.partial(body, index), step_policy, prevent_cse=True)
            carry, result = step(carry, arrays)
            results.append(result)
        return carry, results

    def run_blocks(carry: Any, slices: Sequence[Any]) -> tuple[Any, list[Any]]:
        results: list[Any] = []
        for start in range(0, steps, inner):
            block = slice(start, start + inner)
            run_block = functools.partial(run_steps, range(steps)[block])
            step_block = checkpoint_step(run_block, block_policy, prevent_cse=True)
            carry, block_results = step_block(carry, slices[block])
            results += block_results
        return carry, results

    run = functools.partial(run_steps, range(steps)) if block_policy is None else run_blocks
    run = jax.checkpoint(run) if _is_recomputed(policy) else run
    return lambda carry: run(carry, slices)


def _is_recomputed(policy: Policy) -> TypeGuard[ScanCheckpointPolicy]:
    """Returns whether the backward pass runs the entire loop again."""
    return isinstance(policy, ScanCheckpointPolicy) and not policy.simple and not policy.save_carries


def _split_policy(policy: Policy, steps: int) -> tuple[Policy, ScanCheckpointPolicy | None, int]:
    """Returns the policies of a step and of a block of steps, None if there are no blocks, and the size of a block."""
    if not isinstance(policy, ScanCheckpointPolicy) or policy.simple or not policy.nested or steps < 2:
        return policy, None, steps
    inner = _choose_block_size(steps) if policy.nested is True else min(steps, policy.nested)
    # If no carries are to be saved, the loop over blocks is recomputed as a whole, and saves those between blocks then.
    block_policy = ScanCheckpointPolicy(save_carries=policy.save_carries or True, prevent_cse=policy.prevent_cse)
    return replace(policy, save_carries=True), block_policy, inner


def _choose_block_size(steps: int) -> int:
    """Returns the next divisor after the square root if it saves nearly as few carries, else the square root.

    A loop that is divided into blocks of equal size need not copy its arguments to run the remaining steps.
    """
    root = math.isqrt(steps - 1) + 1
    divisor = next(size for size in range(root, steps + 1) if steps % size == 0)
    # Blocks of about the square root save 2 * root carries; a quarter more is worth the copies that it avoids.
    return divisor if divisor + steps // divisor <= 2.5 * root else root


def _scan_nested(
    scan: Callable[..., Any],
    policy: ScanCheckpointPolicy,
    steps: int,
    inner: int,
    carry: Any,
    arrays: Sequence[Any],
) -> tuple[Any, Any]:
    """Runs a loop of loops of `inner` steps, and one more loop over the remaining steps."""
    blocks, remaining = divmod(steps, inner)
    reverse = scan.keywords["reverse"]  # pyright: ignore[reportFunctionMemberAccess]
    split = remaining if reverse else steps - remaining
    # A loop in reverse starts at the end: the remaining steps, which come last, are then the first slices.
    head, tail = [array[:split] for array in arrays], [array[split:] for array in arrays]
    block_arrays, remaining_arrays = (tail, head) if reverse else (head, tail)
    run_block = checkpoint_step(functools.partial(scan, length=inner), policy)

    block_arrays = [jnp.reshape(array, (blocks, inner, *array.shape[1:])) for array in block_arrays]
    carry, results = jax.lax.scan(run_block, carry, block_arrays, length=blocks, reverse=reverse)
    # The results have an axis of blocks and one of steps, which are merged.
    results, treedef = jax.tree.flatten(results)
    parts = [[jnp.reshape(array, (blocks * inner, *array.shape[2:])) for array in results]]
    if remaining:
        run_remaining = checkpoint_step(functools.partial(scan, length=remaining), policy, prevent_cse=True)
        carry, remaining_results = run_remaining(carry, remaining_arrays)
        parts.insert(0 if reverse else 1, jax.tree.leaves(remaining_results))
    joined = [jnp.concatenate(pieces) if remaining else pieces[0] for pieces in zip(*parts, strict=True)]
    return carry, jax.tree.unflatten(treedef, joined)
