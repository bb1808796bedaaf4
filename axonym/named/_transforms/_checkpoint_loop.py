"""Loops with a checkpoint policy: `jax.lax.scan`, the same as nested loops, and a loop of Python."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp

from ._checkpoint_policy import Policy, ScanCheckpointPolicy, checkpoint_step


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
            part = slice(start, start + inner)
            run_block = functools.partial(run_steps, range(steps)[part])
            carry, more = checkpoint_step(run_block, block_policy, prevent_cse=True)(carry, slices[part])
            results += more
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
    block_policy = ScanCheckpointPolicy(save_carries=policy.save_carries or True, prevent_cse=policy.prevent_cse)
    return replace(policy, save_carries=True), block_policy, inner


def _choose_block_size(steps: int) -> int:
    """Returns the next divisor after the square root if it saves nearly as few carries, else the square root.

    A loop that is divided into blocks of equal size need not copy its arguments to run the remaining steps.
    """
    root = math.isqrt(steps - 1) + 1
    divisor = next(size for size in range(root, steps + 1) if steps % size == 0)
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
    first, last = [array[:split] for array in arrays], [array[split:] for array in arrays]
    full, rest = (last, first) if reverse else (first, last)
    run_block = checkpoint_step(functools.partial(scan, length=inner), policy)

    full = [jnp.reshape(array, (blocks, inner, *array.shape[1:])) for array in full]
    carry, results = jax.lax.scan(run_block, carry, full, length=blocks, reverse=reverse)
    results, treedef = jax.tree.flatten(results)
    parts = [[jnp.reshape(array, (blocks * inner, *array.shape[2:])) for array in results]]
    if remaining:
        run_rest = checkpoint_step(functools.partial(scan, length=remaining), policy, prevent_cse=True)
        carry, more = run_rest(carry, rest)
        parts.insert(0 if reverse else 1, jax.tree.leaves(more))
    joined = [jnp.concatenate(each) if remaining else each[0] for each in zip(*parts, strict=True)]
    return carry, jax.tree.unflatten(treedef, joined)
