"""`Policy`: how layers use the parameters that mappings place, for `fsdp`, `named_jit` and `axis_mapping`.

A mapping says where arrays are. A policy says in which types parameters are sent, used and added up, and into how many
microbatches a pipeline divides a batch. It is part of every jit cache key, so it is hashable and compared by value.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .._ground.errors import make_error
from .._ground.formats import format_value
from .._ground.similar_names import is_typo
from ..partitioning._mapping import AxisMapping, check_name, warn_once
from ._precision import Precision, parse_dtype


GatherDtype: TypeAlias = Any
"""An element type in which parameters are gathered, or a mapping from names of axes to element types."""

_GATHER_DTYPES = ("bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """In which element types layers gather and use parameters, and whether they are stages of a pipeline.

    Args:
        precision: Its `computing` and `reductions` apply. Layers convert each parameter to its type for computing
            before they gather it, so that they send and compute in that type. Its gradient is added up in the type for
            reductions, and comes back in the type of the parameter.
        gather_dtype: The element type in which `fsdp` sends parameters when they are gathered: `bfloat16`, `float16`,
            `int8`, `float8_e4m3fn` or `float8_e5m2`; or a mapping from names of axes to these and None, of which the
            first that a parameter has applies. None sends parameters in their own type, as do those that have fewer
            bits. Layers get them in their own type again. Parameters themselves stay exact, and gradients are those of
            a gather without rounding.
        microbatches: Into how many microbatches a pipeline divides an axis, as in `{"batch": 8}`. With it, layers of
            `Stacked` whose axis is mapped are the stages of a pipeline.

    Attributes:
        precision: As given.
        gather_dtype: As given, with pairs in place of a mapping.
        microbatches: The axis that is divided and the number of its parts; None if there is no pipeline.

    Raises:
        TypeError: If `precision` is not a `Precision`, or a name is not a string.
        ValueError: If `gather_dtype` or `microbatches` is something else, or `precision` computes or adds up gradients
            by patterns of paths, which layers do not know.

    Example:
        >>> import axonym as nym
        >>> nym.Policy(gather_dtype="int8", microbatches={"batch": 8})
        Policy(precision=None, gather_dtype=dtype('int8'), microbatches=('batch', 8))
    """

    precision: Precision | None = None
    gather_dtype: GatherDtype | None = None
    microbatches: Any = None

    def __post_init__(self) -> None:
        _check_precision(self.precision)
        # The dataclass is frozen.
        object.__setattr__(self, "gather_dtype", _parse_gather_dtype(self.gather_dtype))
        object.__setattr__(self, "microbatches", _parse_microbatches(self.microbatches))

    def find_gather_dtype(self, names: Sequence[str]) -> Any:
        """Returns the element type in which a parameter with these axes is gathered; None for its own."""
        if not isinstance(self.gather_dtype, tuple):
            return self.gather_dtype
        return next((dtype for name, dtype in self.gather_dtype if name in names), None)


def check_policy(policy: Any, function: str) -> None:
    """Raises a TypeError of a function whose `policy` is something else than a `Policy`."""
    if not isinstance(policy, Policy):
        raise make_error(
            TypeError,
            f"`policy` of `{function}` is a `Policy`, such as `nym.Policy(gather_dtype='int8')`, not "
            f"{format_value(policy)}.",
        )


def warn_of_typos(policy: Policy, mappings: Sequence[AxisMapping]) -> None:
    """Warns of names in a policy that look mistyped beside those of the mappings that it is used with."""
    options: dict[str, Any] = {"gather_dtype": policy.gather_dtype}
    if policy.precision is not None:
        options["computing"] = policy.precision.computing
        options["reductions"] = policy.precision.reductions
    entries = sorted({name for mapping in mappings for name in mapping.names})
    for option, types in options.items():
        if not isinstance(types, tuple):
            continue
        for name, _ in types:
            if not isinstance(name, str) or name in entries:
                continue
            for entry in entries:
                if is_typo(name, entry):
                    warn_once(f"`{option}` has axis {name!r}, and the mapping has {entry!r}; correct the name")
                    break


def _check_precision(precision: Any) -> None:
    if precision is None:
        return
    if not isinstance(precision, Precision):
        raise make_error(
            TypeError,
            "`precision` of a `Policy` is a `Precision`, such as `nym.Precision(computing='bfloat16')`, not "
            f"{format_value(precision)}.",
        )
    for option, types in (("computing", precision.computing), ("reductions", precision.reductions)):
        if not isinstance(types, tuple):
            continue
        for key, _ in types:
            if not isinstance(key, str) and key is not ...:
                raise ValueError(
                    f"pattern {key.pattern!r} in `{option}` of a `Precision` needs paths, and layers know only the "
                    "names of their parameters; name axes, or convert parameters with `cast_computing` where the model "
                    "is called"
                )


def _parse_gather_dtype(gather_dtype: Any) -> Any:
    """Returns an element type, or pairs of names and element types, which may be None."""
    if isinstance(gather_dtype, Mapping):
        gather_dtype = tuple(gather_dtype.items())
    if not isinstance(gather_dtype, tuple):
        return _check_gather_dtype(gather_dtype)
    pairs: list[tuple[str, Any]] = []
    for name, dtype in gather_dtype:
        check_name(name)
        pairs.append((name, _check_gather_dtype(dtype)))
    return tuple(pairs) or None


def _check_gather_dtype(gather_dtype: Any) -> Any:
    if gather_dtype is None:
        return None
    dtype = parse_dtype(gather_dtype)
    if dtype is None or dtype.name not in _GATHER_DTYPES:
        raise make_error(
            ValueError,
            f"`gather_dtype` is one of {', '.join(map(repr, _GATHER_DTYPES))}, or a mapping from names of axes to "
            f"these and None, not {format_value(gather_dtype)}.",
        )
    return dtype


def _parse_microbatches(microbatches: Any) -> tuple[str, int] | None:
    """Returns the axis that a pipeline divides, and the number of its microbatches; None if none is given."""
    if microbatches is None or microbatches == {}:
        return None
    pair = microbatches
    if isinstance(microbatches, Mapping) and len(microbatches) == 1:
        [pair] = microbatches.items()
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    if not is_pair or not isinstance(pair[0], str) or type(pair[1]) is not int or pair[1] < 1:
        raise make_error(
            ValueError,
            "`microbatches` is the name of an axis and into how many parts a pipeline divides it, as in "
            f"{{'batch': 8}}, not {format_value(microbatches)}.",
        )
    return pair
