"""Which implementation computes attention, and why."""

import dataclasses

from .._jax_compat import find_platform
from ..named._arguments import check_choice
from ._attention_inputs import AttentionInputs
from ._blocked_attention import find_blocked_obstacle
from ._jax_attention import find_cudnn_obstacle, find_jax_obstacle
from ._splash_attention import find_splash_obstacle


MOST_SCORES = 2048 * 2048
"""The number of scores of a head above which "auto" computes them in blocks."""

_OBSTACLES = {
    "splash": find_splash_obstacle,
    "jax": find_jax_obstacle,
    "blocked": find_blocked_obstacle,
    "plain": lambda inputs: None,
}


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The implementation that `dot_product_attention` uses for some arguments; see `explain_attention`.

    Attributes:
        implementation: Its name.
        reason: Why it is used.
        others: Pairs of each other implementation and why it is not used.

    Example:
        >>> import axonym as nym
        >>> q, k = nym.ones({"pos": 3, "head_dim": 4}), nym.ones({"key_pos": 3, "head_dim": 4})
        >>> nym.nn.explain_attention("key_pos", "head_dim", q, k, k).implementation
        'plain'
    """

    implementation: str
    reason: str
    others: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """Formats a line for each implementation."""
        lines = [(f"{self.implementation} (used)", self.reason), *self.others]
        return "\n".join(f"{name:<16}{why}" for name, why in lines)


def choose_implementation(inputs: AttentionInputs, implementation: str) -> str:
    """Returns the name of the implementation for some inputs: the one that is asked for, or the first that serves.

    Raises:
        ValueError: If there is none of that name, or it cannot compute this.
    """
    check_choice("dot_product_attention: `implementation`", implementation, ("auto", *_OBSTACLES))
    if implementation == "auto":
        return next(name for name in _OBSTACLES if not _find_objection(name, inputs))
    if obstacle := _OBSTACLES[implementation](inputs):
        able = ", ".join(repr(name) for name, find in _OBSTACLES.items() if not find(inputs))
        raise ValueError(
            f"dot_product_attention: implementation {implementation!r} cannot compute this: {obstacle}; "
            f"these can: {able}"
        )
    return implementation


def explain_choice(inputs: AttentionInputs, implementation: str) -> AttentionChoice:
    """Returns the implementation for some inputs, with the reasons for and against each; errors as for the choice."""
    chosen = choose_implementation(inputs, implementation)
    if implementation == "auto":
        reason, other = _describe_advantage(chosen, inputs), f"{chosen!r} comes first"
    else:
        reason, other = "it is asked for", f"{chosen!r} is asked for"
    others = [(name, _find_objection(name, inputs) or other) for name in _OBSTACLES if name != chosen]
    return AttentionChoice(chosen, reason, tuple(others))


def _count_scores(inputs: AttentionInputs) -> int:
    queries = 1 if inputs.QPos is None else inputs.query.axis_size(inputs.QPos)
    return queries * inputs.key.axis_size(inputs.KPos)


def _find_objection(implementation: str, inputs: AttentionInputs) -> str | None:
    """Returns why "auto" does not choose an implementation, None if nothing is against it."""
    if implementation == "splash" and find_platform() != "tpu":
        return f"on {find_platform()} it runs in interpret mode, which is slow"
    if implementation == "jax" and (obstacle := find_cudnn_obstacle(inputs)):
        return f"without the kernel of cuDNN it is no better than 'plain': {obstacle}"
    if implementation == "blocked" and _count_scores(inputs) <= MOST_SCORES:
        return f"the scores of a head are few: {_count_scores(inputs):,}, at most {MOST_SCORES:,}"
    return _OBSTACLES[implementation](inputs)


def _describe_advantage(implementation: str, inputs: AttentionInputs) -> str:
    if implementation == "splash":
        return "the kernel for TPUs takes these inputs"
    if implementation == "jax":
        return "the kernel of cuDNN takes these inputs"
    if implementation == "blocked":
        return f"the scores of a head are many: {_count_scores(inputs):,}, more than {MOST_SCORES:,}"
    return "it is the fastest for few scores, and has all features"
