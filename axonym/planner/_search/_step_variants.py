"""The variants of a step that a plan chooses among: policies of rematerialization, options, sizes, ways to gather."""

import collections
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ..._ground.formats import suggest_name
from ...named._array import NamedArray, is_named_array
from ...nn import LayerStack, Stacked
from ...partitioning._leaves import ARRAY_TYPES
from ...training._policy import Policy
from ...tree_util import resize_axis
from .._program._arguments import group_arguments, map_optimizer_state
from .._program._named_program import (
    NamedProgram,
    NamedShape,
    find_shared_names,
    make_named_shape,
    trace_named_program,
)


@dataclass(frozen=True)
class StepVariant:
    """A step with a policy, options and sizes, which are as in `Candidate`.

    Attributes:
        fn: The step, with its options.
        args: Its arguments, with the policy and the sizes.
        named_program: The traced step.
        arguments: The arrays of the arguments, each with its group, as in a memory report.
        tokens: The tokens of the step; 0 if not known.
        samples: The samples of the step; 0 if not known.
        model_flops: The floating-point operations of the step, without recomputation.
        sequences: The sequences that the step serves; 0 if it trains.
        gather: The name of how parameters are gathered; empty if they are as they are stored.
        gather_policy: The policy of `fsdp` for that.
        has_offloaded_state: Whether the optimizer state is in the memory of the host between updates.
    """

    policy: str
    options: Mapping[str, Any]
    sizes: Mapping[str, int]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    named_program: NamedProgram
    arguments: tuple[tuple[str, NamedShape], ...]
    tokens: int = 0
    samples: int = 0
    model_flops: float = 0.0
    sequences: int = 0
    gather: str = ""
    gather_policy: Policy = field(default_factory=Policy)
    has_offloaded_state: bool = False

    @property
    def has_typed_reductions(self) -> bool:
        """Whether the step adds up gradients in a type of their own."""
        precision = self.gather_policy.precision
        return precision is not None and precision.reductions is not None


def list_variants(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    policies: Mapping[str, Any] | None,
    options: Mapping[str, Sequence[Any]] | None,
    pruned: "collections.Counter[str]",
    sizes: Mapping[str, Sequence[int]] | None = None,
    gathers: Mapping[str, Policy] | None = None,
) -> list[StepVariant]:
    """Returns the step with each combination of policies, options, sizes and gathers, traced; counts errors.

    Raises:
        TypeError: If `policies`, `options`, `sizes` or `gathers` is not a mapping of what it should have.
        ValueError: If it is empty, no argument has layers whose policy can be chosen, or no axis of the data has the
            name of one in `sizes`.
    """
    _check_sizes(sizes, args)
    _check_choices("policies", policies, "a name for each policy, such as {'offload': 'offload', 'full': True}")
    _check_choices("options", options, "the values of each keyword argument, such as {'microbatches': (1, 2)}")
    _check_gathers(gathers)
    if policies and not _has_layers(args):
        raise ValueError(
            "`policies` is given, but no argument has a `Stacked` or a `BlockSeq`, whose `gradient_checkpointing` they "
            "are; leave it out, or make the policy an option of the step"
        )

    args = jax.tree.map(_make_shape, args)  # without shardings, since each candidate has its own
    arguments = _list_arguments(args)
    if not any(shape.names for _, shape in arguments):
        raise ValueError("no argument has named axes, so there is nothing to shard; pass named arrays")
    args_by_policy = {"": args}
    if policies:
        args_by_policy = {name: _replace_policy(args, policy) for name, policy in policies.items()}
    options, sizes, gathers = options or {}, sizes or {}, gathers or {"": Policy()}
    variants: list[StepVariant] = []
    errors: list[Exception] = []
    choices = itertools.product(
        args_by_policy, itertools.product(*options.values()), itertools.product(*sizes.values()), gathers
    )
    for policy, option_values, size_values, gather in choices:
        settings = dict(zip(options, option_values, strict=True))
        chosen_sizes = dict(zip(sizes, size_values, strict=True))
        step = functools.wraps(fn)(functools.partial(fn, **settings)) if settings else fn
        variant_args = resize_axes(args_by_policy[policy], chosen_sizes)
        try:
            named_program = trace_named_program(step, variant_args, gathers[gather])
        except ValueError as error:  # such as for a batch that is not divisible by a number of microbatches
            errors.append(error)
            chosen = {**chosen_sizes, **settings}.items()
            label = ", ".join(f"{name}={value!r}" for name, value in chosen) or policy
            pruned[f"{label}: {error}"] += 1
        except Exception as error:
            _explain_trace_error(error, arguments)
            if settings:
                error.add_note(f"`plan` called the step with the `options` {settings}.")
            raise
        else:
            arguments = _list_arguments(variant_args)
            variant = StepVariant(policy, settings, chosen_sizes, step, variant_args, named_program, arguments)
            variants.append(replace(variant, gather=gather, gather_policy=gathers[gather]))
    if not variants:
        _explain_trace_error(errors[0], arguments)
        raise errors[0]
    layer_names = _list_layer_names(args)
    programs: dict[tuple[str, ...], NamedProgram] = {}  # by options; names are the same for all policies and sizes
    for index, variant in enumerate(variants):
        key = tuple(map(repr, variant.options.values()))
        if key not in programs:
            programs[key] = find_shared_names(variant.fn, variant.args, variant.named_program)
        named_program = replace(
            variant.named_program,
            layer_names=layer_names,
            shared_names=programs[key].shared_names,
            arrays=variant.named_program.arrays | programs[key].arrays,
        )
        variants[index] = replace(variant, named_program=named_program)
    return variants


def _list_arguments(args: tuple[Any, ...]) -> tuple[tuple[str, NamedShape], ...]:
    """Returns the arrays of arguments, each with its group."""
    return tuple(
        (array.group, make_named_shape(array.names, array.shape, array.dtype)) for array in group_arguments(args)
    )


def _make_shape(leaf: Any) -> Any:
    if not isinstance(leaf, ARRAY_TYPES):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))


def resize_axes(args: tuple[Any, ...], sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Returns arguments with other sizes of axes, as shapes, and with these axes in static fields, as caches have."""
    for name, size in sizes.items():
        args = eqx.filter_eval_shape(functools.partial(resize_axis, old_axis=name, new_size=size), args)
    return jax.tree.map(_make_shape, args) if sizes else args


def _check_sizes(sizes: Any, args: tuple[Any, ...]) -> None:
    expected = "the sizes of axes of the data, such as {'batch': (256, 512)}"
    _check_choices("sizes", sizes, expected)
    first, *others = ({name for array in _list_named(arg) for name in array.names} for arg in args or ((),))
    data_names = sorted(set().union(*others) - first)
    for name, values in (sizes or {}).items():
        is_sequence = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
        if not is_sequence or not all(isinstance(size, int) and size > 0 for size in values):
            raise TypeError(f"`sizes` has {values!r} for {name!r}; give a sequence of sizes to try, such as (256, 512)")
        if name in first:
            raise ValueError(
                f"`sizes` has {name!r}, an axis of the first argument, which has the parameters; give axes of the "
                f"data, of which there are {', '.join(data_names) or 'none'}"
            )
        if name not in data_names:
            raise ValueError(
                f"`sizes` has {name!r}, which no argument has{suggest_name(str(name), data_names)}; axes of the data "
                f"are {', '.join(data_names) or 'those that only arguments after the first have, and there are none'}"
            )


def _list_named(tree: Any) -> list[NamedArray]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_named_array) if isinstance(leaf, NamedArray)]


def _explain_trace_error(error: Exception, arguments: Sequence[tuple[str, NamedShape]]) -> None:
    """Adds to an error of the step how it was traced, and which arrays of its arguments have no names."""
    if "mesh" in str(error):
        error.add_note(
            "`plan` traces the step on a mesh of its own, with a mesh axis for each named axis, and under its own "
            "mappings; leave out `axis_mapping`, `set_mesh` and specs of mesh axes inside of the step."
        )
    plain = [list(shape.sizes) for _, shape in arguments if shape.dims and not shape.names]
    if plain:
        shapes = ", ".join(map(str, plain[:3])) + (f" and {len(plain) - 3} more" if len(plain) > 3 else "")
        error.add_note(
            f"Arrays without names among the arguments of the step have the shapes {shapes}; name their axes, and "
            "compute with functions of named arrays."
        )


def vary_policy(variant: StepVariant, policy: Any) -> StepVariant | None:
    """Returns a step with another policy for its layers, not traced anew; None if it has no layers."""
    return replace(variant, args=_replace_policy(variant.args, policy)) if _has_layers(variant.args) else None


def add_offloaded_states(variants: Sequence[StepVariant]) -> list[StepVariant]:
    """Returns steps, and after them each with the optimizer state in the memory of the host, which computes the same.

    Raises:
        ValueError: If no argument is optimizer state, or the step computes with it where it is.
    """
    # Where a step computes depends on its options alone, so it is not traced for each policy, size and gather.
    for variant in {tuple(map(repr, variant.options.values())): variant for variant in variants}.values():
        _check_offloadable(variant)
    return [*variants, *(replace(variant, has_offloaded_state=True) for variant in variants)]


def _check_offloadable(variant: StepVariant) -> None:
    if not any(group == "optimizer state" for group, _ in variant.arguments):
        raise ValueError(
            "`offload_state` is given, but no argument is optimizer state; pass that of Optax, or leave it out"
        )
    try:
        trace_named_program(
            variant.fn, place_state_on_host(variant.args, AbstractMesh((1,), ("data",))), variant.gather_policy
        )
    except Exception as error:  # the step itself can be traced, so this is about the memory
        raise ValueError(
            "`offload_state` is given, but the step computes with the optimizer state where it is; wrap all of its "
            f"optimizer in `offloaded_optimizer`, also `chain` and `MultiSteps`, or leave it out. JAX's error: {error}"
        ) from error


def place_state_on_host(args: tuple[Any, ...], mesh: AbstractMesh) -> tuple[Any, ...]:
    """Returns arguments with the arrays of the optimizer state in the memory of the host, but for scalars."""
    sharding = NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host")

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct) or not leaf.shape:
            return leaf
        return leaf.update(sharding=sharding)

    return map_optimizer_state(place, args)


def count_model_flops(variant: StepVariant) -> float:
    """Returns the floating-point operations of products in a step of all devices, without recomputation."""
    plain = vary_policy(variant, False)
    return variant.named_program.flops if plain is None else trace_named_program(plain.fn, plain.args).flops


def _check_choices(name: str, choices: Any, expected: str) -> None:
    if choices is not None and not isinstance(choices, Mapping):
        auto = "'auto' or " if name == "policies" else ""
        raise TypeError(f"`{name}` is {auto}a mapping from {expected}, not a {type(choices).__name__}")
    if choices is not None and not choices:
        raise ValueError(f"`{name}` is empty; give {expected}, or None")
    for key, values in (choices or {}).items() if name == "options" else ():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise TypeError(
                f"`options` has {values!r} for {key!r}; give a sequence of values to try, such as (1, 2, 4)"
            )


def _check_gathers(gathers: Any) -> None:
    expected = "policies by name, such as {'exact': Policy(), 'int8': Policy(gather_dtype='int8')}"
    _check_choices("gathers", gathers, expected)
    for name, policy in (gathers or {}).items():
        if not isinstance(policy, Policy) or policy.microbatches is not None:
            raise TypeError(
                f"`gathers` has {policy!r} for {name!r}; give a `Policy` without `microbatches`, which are searched, "
                "such as `Policy(gather_dtype='int8')`"
            )


def _is_layer_stack(node: Any) -> bool:
    return isinstance(node, LayerStack)


def _list_layer_names(args: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns the layer axes of the parameters that are stored stacked."""
    nodes = jax.tree.leaves(args[:1], is_leaf=_is_layer_stack)
    return tuple(dict.fromkeys(node.Block.name for node in nodes if isinstance(node, Stacked)))


def _has_layers(args: tuple[Any, ...]) -> bool:
    return any(map(_is_layer_stack, jax.tree.leaves(args, is_leaf=_is_layer_stack)))


def _replace_policy(args: tuple[Any, ...], policy: Any) -> tuple[Any, ...]:
    """Returns the arguments with another policy for their layers, those in optimizer states and in layers too."""

    def replace_in(node: Any) -> Any:
        if not _is_layer_stack(node):
            return node
        inner = jax.tree.map(replace_in, node, is_leaf=lambda x: x is not node and _is_layer_stack(x))
        return replace(inner, gradient_checkpointing=policy)

    return jax.tree.map(replace_in, args, is_leaf=_is_layer_stack)
