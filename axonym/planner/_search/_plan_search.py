"""`plan`: the mesh, the mappings and the policy with which a step is fastest on a machine that is not there."""

import collections
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ..._ground.formats import format_bytes, suggest_name
from ...named._array import NamedArray, is_named_array
from ...partitioning.jit._named_jit import NamedJit
from ...training._policy import Policy
from .._compiler._compile_cache import choose_cache_folder
from .._compiler._compiler_process import find_versions
from .._machine._described_devices import DescribedDevice, choose_whole_machine
from .._machine._hardware import get_hardware
from .._plan._candidate import Candidate, Evaluation
from .._plan._plan import Plan
from .._program._named_program import NamedProgram
from ._best_candidates import ComputingSpeed, compile_best
from ._calibration import Calibration, Measurement, calibrate
from ._candidate_compiler import CandidateCompiler, SearchProgress
from ._published_flags import PUBLISHED, PublishedFlags, describe_flags, find_published_flags
from ._saved_names import AUTO, RECOMPUTE_LAYERS, describe_policy, describe_unsaved, propose_policies
from ._screening import Prospect, Screening
from ._search_space import explain_no_candidate, list_candidates, list_fixed_notes, parse_fixed
from ._step_variants import StepVariant, add_offloaded_states, count_model_flops, list_variants


_PROMISING = 1.5  # times that a candidate may take as long as the best, to be screened with further policies
_LESS_PROMISING = "less promising in the model of the machine"


def plan(
    fn: Any,
    *args: Any,
    devices: str | Sequence[DescribedDevice],
    fixed: Mapping[str, Mapping[str, Any]] | None = None,
    policies: Mapping[str, Any] | Literal["auto"] | None = None,
    options: Mapping[str, Sequence[Any]] | None = None,
    gathers: Mapping[str, Policy] | None = None,
    offload_state: bool = False,
    sizes: Mapping[str, Sequence[int]] | None = None,
    serve: str | None = None,
    measured: Measurement | None = None,
    top: int = 3,
    budget: float | None = None,
    compiler_options: Mapping[str, Any] | Literal["published"] | None = None,
    cache: bool | str | os.PathLike[str] = True,
    progress: bool | None = None,
) -> Plan:
    """Searches for the mesh, the mappings and the policy with which a step is fastest on a machine that is not there.

    All shardings that the names permit are screened by a model of the machine. The best of them are compiled as far as
    it takes to know their memory and what they send. On TPUs, the best of these are compiled to the end, for the
    compiler's estimates of cycles. For devices without a compiler, such as GPUs of AMD, candidates are only screened.
    Nothing is run. See [Planning](../planning.md).

    Args:
        fn: A plain function, or one of `named_jit` or `fsdp`, whose donation is kept and whose mappings are replaced by
            those of each candidate, which a note says. Its body must not activate a mapping of its own.
        args: Its arguments, which may be `jax.ShapeDtypeStruct`s in named arrays. The first has the parameters; axes
            that only the others have are those of the data.
        devices: A description such as `"v5e:16x16"`, or described devices.
        fixed: Choices that are not searched for: `{"mesh": {"data": 64, "model": 4}}` the sizes of all mesh axes,
            `{"compute": {"mlp": "model", "heads": None}}` and `{"parameters": {"embed": "data"}}` the mesh axes of
            named axes while computing and between steps, `{"microbatches": {"batch": 8}}` those of stages.
        policies: The values of `gradient_checkpointing` to try for every `Stacked` and `BlockSeq` in the arguments, by
            a name of your own for each; None leaves them as they are. `"auto"` tries `False`, `True`, `"offload"` and
            policies that save values with names of `tree_checkpoint_name` in the layers, those first that save most
            seconds for each byte. A note has the policy of the best candidate.
        options: By keyword argument of `fn`, the values to try, such as `{"microbatches": (1, 2, 4)}`.
        gathers: How to try to gather parameters and to add up their gradients, policies of `fsdp` by
            a name of your own, such as `{"exact": Policy(), "int8": Policy(gather_dtype="int8")}`. They change what a
            step computes. A precision with `reductions` is planned on Explicit mesh axes.
        offload_state: Whether to try the optimizer state in the memory of the host as well, for a step that updates it
            by an optimizer of `offloaded_optimizer`.
        sizes: By axis of the data, the sizes to try, such as `{"batch": (256, 512, 1024)}`, instead of those of `args`.
            Candidates are ranked by the seconds for each sample then, not for a step.
        serve: The axis of the sequences, such as `"batch"`, if the step serves a model: decodes tokens or reads
            prompts. Each combination of `sizes` has a search of its own then, and candidates are ranked by the seconds
            for each sequence.
        measured: What a step took that you ran, with one sharding and on as many such devices as you have. Times are
            scaled by how many times as long as predicted it took, as a whole or part by part, which a note has. See
            [Planning](../planning.md#calibrate-with-your-own-machine).
        top: How many candidates to print with all their parts.
        budget: Seconds, above 0, after which no further candidate is compiled.
        compiler_options: Options of XLA, for all candidates. `"published"` compiles the best candidate with each set of
            flags that training runs on such TPUs are published with, too; notes have these and their sources.
        cache: As for `compile_for`.
        progress: Whether to write a line for each candidate to the error stream; None if that is a terminal, where each
            line replaces the one before.

    Returns:
        The plan, with all candidates that were compiled. Ctrl-C returns the part that is known.

    Raises:
        Exception: The error of the first candidate if the first three cannot be compiled, as for an option of XLA that
            does not exist.
        TypeError: If `fn` is not a function, or `devices` are not described ones.
        ValueError: If there is no candidate, or an argument of this function is wrong.
        ModuleNotFoundError: If the compiler is not installed.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> def loss(weight, x):
        ...     return nym.mean(nym.dot(x, weight, axis="embed")).array
        >>> weight = nym.NamedArray(jax.ShapeDtypeStruct((512, 256), "float32"), ("embed", "mlp"))
        >>> x = nym.NamedArray(jax.ShapeDtypeStruct((1024, 512), "float32"), ("batch", "embed"))
        >>> plan = nym.planner.plan(loss, weight, x, devices="cpu:4", cache=False)
        >>> plan.best.candidate.compute["batch"]
        ('data',)
    """
    start_time = time.monotonic()
    _check_request(fn, top, budget)
    choose_cache_folder(cache)  # raises an error before the search
    plain: Any = vars(fn)["__wrapped__"] if isinstance(fn, NamedJit) else fn  # without mappings of its own
    described = choose_whole_machine(devices)
    topology = described[0].topology
    has_compiler = get_hardware(topology.hardware).has_compiler
    versions = find_versions(topology) if has_compiler else {}
    published_flags: Mapping[str, PublishedFlags] = {}
    if compiler_options == PUBLISHED:
        published_flags, compiler_options = find_published_flags(topology.hardware), None
    compiler = CandidateCompiler(described, fn.options if plain is not fn else {}, compiler_options, cache)
    pruned: collections.Counter[str] = collections.Counter()  # what follows adds to it, by reason
    log = SearchProgress(sys.stderr.isatty() if progress is None else progress, start_time, budget)

    def vary_step(tried: Mapping[str, Any] | None) -> list[StepVariant]:
        steps = _count_work(list_variants(plain, args, tried, options, pruned, sizes, gathers), serve)
        return add_offloaded_states(steps) if offload_state else steps

    variants: list[StepVariant] = []
    prospects: list[Prospect] = []
    first_prospects: dict[tuple[Any, ...], list[Prospect]] = {}
    proposed: dict[str, Any] = {}
    if policies == AUTO:
        variants = vary_step(RECOMPUTE_LAYERS)
        prospects = _screen_candidates(variants, compiler, fixed, pruned, first_prospects)
        first_variant = [prospect for prospect in prospects if prospect.variant is variants[0]]
        best_prospect = min(first_variant or prospects, key=lambda prospect: prospect.sort_key)
        proposed = propose_policies(best_prospect, compiler.hardware, compiler.make_link_model)
        policies = {name: policy for name, policy in proposed.items() if name not in RECOMPUTE_LAYERS}
    further_variants = vary_step(policies)
    variants += further_variants
    prospects += _screen_candidates(further_variants, compiler, fixed, pruned, first_prospects)
    tried_policies = proposed or policies
    calibration = None
    if measured is not None:
        calibration = calibrate(measured, plain, args, tried_policies, gathers, compiler, log)
    speed = ComputingSpeed({}, calibration)
    prospects.sort(key=lambda prospect: prospect._replace(estimate=speed.scale(prospect.estimate)).sort_key)
    flags_to_try = [*published_flags.values()]
    results = compile_best(prospects, compiler, log, flags_to_try, calibration) if has_compiler else []
    ranked, best_as_screened = _rank_evaluations(prospects, results, calibration)
    pruned[_LESS_PROMISING] += len(prospects) - len(ranked)
    best = ranked[0].candidate
    if best.flags:
        compiler_options = published_flags[best.flags].options
    choice_notes = [describe_policy(best.policy, proposed)] if proposed else []
    traced_policies = {variant.policy for variant in variants}
    choice_notes += [
        f"policy {policy!r} was not tried, since the step cannot be traced with it, as the reasons for what is left "
        "out say; a step that takes a part of the model from outside has that with its own policy, so pass the whole "
        "model as its first argument"
        for policy in tried_policies or ()
        if policy not in traced_policies
    ]
    if proposed and results and ranked[0].is_usable:
        compiled_policies = {evaluation.candidate.policy for evaluation, _ in results}
        choice_notes += describe_unsaved(best.policy, compiled_policies, proposed)
    tried_flags = {evaluation.candidate.flags for evaluation, _ in results}
    choice_notes += [describe_flags(flags) for name, flags in published_flags.items() if name in tried_flags]
    if (copied := ranked[0].memory.get("results", 0)) and copied >= ranked[0].memory.get("cache", math.inf) / 2:
        choice_notes.append(f"results take {format_bytes(copied)} beside the cache; donate the cache that they replace")
    choice_notes += () if calibration is None else calibration.notes
    named_program = variants[0].named_program
    names = *named_program.parameter_names, *named_program.data_names
    fixed_notes = list_fixed_notes(named_program, parse_fixed(fixed, names, len(described)))
    return Plan(
        evaluations=ranked,
        topology=topology,
        top=top,
        pruned={reason: count for reason, count in pruned.items() if count},
        model_flops=ranked[0].model_flops,
        tokens=ranked[0].tokens,
        versions=versions,
        compiler_options=dict(compiler_options or {}),
        seconds=time.monotonic() - start_time,
        notes=(*_list_notes(fn, args, variants[0], offload_state), *fixed_notes, *choice_notes, *log.notes),
        screened=best_as_screened,
        samples=ranked[0].samples,
        stopped_by=log.stopped_by,
        serve=serve or "",
    )


def _check_request(fn: Any, top: Any, budget: Any) -> None:
    if not callable(fn):
        raise TypeError(f"`fn` is a function, not a {type(fn).__name__}")
    owner = getattr(fn, "__self__", None)
    if any(map(is_named_array, jax.tree.leaves(owner, is_leaf=is_named_array))):
        name, method = type(owner).__name__, getattr(fn, "__name__", "method")
        raise TypeError(
            f"`fn` is a method of a {name} with named arrays, which would be no arguments; pass the function, and "
            f"the {name} as its first argument: `plan({name}.{method}, ...)`"
        )
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise TypeError(f"`top` is how many plans to print, 1 or more; it was {top!r}")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int | float)):
        raise TypeError(f"`budget` is a number of seconds or None; it was {budget!r}")
    if budget is not None and not budget > 0:  # nan is not either
        raise ValueError(f"`budget` is above 0 seconds, or None for no limit; it was {budget!r}")


def _list_notes(fn: Any, args: Sequence[Any], variant: StepVariant, offload_state: bool) -> Iterator[str]:
    """Yields notes on what the search does with a step that its author may not expect."""
    if isinstance(fn, NamedJit) and fn.has_mapping:
        yield "the mappings of the step are replaced by those of the plan"
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    if not offload_state and any(getattr(sharding, "memory_kind", None) == "pinned_host" for sharding in shardings):
        yield "arguments in the memory of the host are planned in that of the device"
    arrays = [leaf for leaf in jax.tree.leaves(variant.args[0]) if isinstance(leaf, jax.ShapeDtypeStruct)]
    if not any(jnp.issubdtype(array.dtype, jnp.inexact) for array in arrays):
        yield "the first argument has no floating-point numbers, but it is taken as that with the parameters"
    if not variant.named_program.data_names:
        yield "no argument but the first has axes of its own, so no batch is sharded; name the axes of the data"
    if not isinstance(fn, NamedJit):
        yield "results take memory of their own; donation counts only for functions of `named_jit` and `fsdp`"


def _screen_candidates(
    variants: Sequence[StepVariant],
    compiler: CandidateCompiler,
    fixed: Any,
    pruned: "collections.Counter[str]",
    first_prospects: dict[tuple[Any, ...], list[Prospect]],
) -> list[Prospect]:
    """Returns estimates of candidates; counts those that are left out, by reason.

    Args:
        variants: The steps.
        compiler: The compiler.
        fixed: As for `plan`.
        pruned: The counts.
        first_prospects: By options and sizes, the estimates with the first policy, the first way to gather, and the
            state on the device, of which the promising ones are screened with others. What it lacks is added.
    """
    devices = len(compiler.devices)
    named_program = variants[0].named_program  # all have the same names
    parsed = parse_fixed(fixed, (*named_program.parameter_names, *named_program.data_names), devices)
    prospects: list[Prospect] = []
    for variant in sorted(variants, key=lambda variant: (variant.policy, variant.gather, variant.has_offloaded_state)):
        screening = Screening(variant, compiler.hardware, compiler.make_link_model)
        key = (*map(repr, variant.options.values()), *variant.sizes.values())
        if key in first_prospects:
            candidates = _choose_promising(first_prospects[key])
            pruned[_LESS_PROMISING] += len(first_prospects[key]) - len(candidates)
        else:
            candidates = list_candidates(variant.named_program, devices, parsed, pruned)
        screened = [
            screening.screen(
                replace(
                    candidate,
                    policy=variant.policy,
                    options=variant.options,
                    sizes=variant.sizes,
                    gather=variant.gather,
                    has_typed_reductions=variant.has_typed_reductions,
                    has_offloaded_state=variant.has_offloaded_state,
                )
            )
            for candidate in candidates
        ]
        first_prospects.setdefault(key, screened)
        prospects += screened
    if not prospects:
        reason = explain_no_candidate(named_program, devices, parsed, pruned)
        raise ValueError(f"no sharding of the step is possible on '{compiler.devices[0].topology}': {reason}")
    return prospects


def _choose_promising(prospects: Sequence[Prospect]) -> list[Candidate]:
    """Returns the candidates to screen with further settings: those up to `_PROMISING` times as slow as the best.

    A policy makes a step longer or shorter by what is recomputed, which is less. Ways to gather may change it by more,
    and are tried on what is fast without them.
    """
    costs = [prospect.estimate.cost for prospect in prospects if prospect.is_likely_to_fit]
    limit = _PROMISING * min(costs, default=math.inf)
    return [prospect.estimate.candidate for prospect in prospects if prospect.estimate.cost <= limit]


def _rank_evaluations(
    prospects: Sequence[Prospect],
    results: Sequence[tuple[Evaluation, Prospect]],
    calibration: Calibration | None,
) -> tuple[tuple[Evaluation, ...], Evaluation | None]:
    """Returns compiled candidates and alternatives, the best first, and what screening says of the best.

    That is None if the best was only screened, too. Times that are not the compiler's are scaled, so that they can be
    compared with those that are.
    """
    evaluations = [evaluation for evaluation, _ in results]
    evaluations += _list_alternatives(prospects, evaluations)
    speed = ComputingSpeed.measure(results, calibration)
    ranked = tuple(sorted(map(speed.scale, evaluations), key=_make_sort_key))
    for evaluation, prospect in results:
        if evaluation.candidate.key == ranked[0].candidate.key:
            return ranked, speed.scale(prospect.estimate)
    return ranked, None


def _make_sort_key(evaluation: Evaluation) -> tuple[Any, ...]:
    """Returns the key that sorts evaluations: what fits and is timed first, then by step time, or that of a sample."""
    stage = {"timed": 0, "compiled": 1, "screened": 2}[evaluation.stage]
    missing = 0 if evaluation.fits else evaluation.bytes
    is_guess = stage == 2  # that arguments fit says little beside what the compiler knows of others
    return bool(evaluation.problem), is_guess, missing, stage, evaluation.cost, evaluation.candidate.key


def _list_alternatives(prospects: Sequence[Prospect], evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Returns the best candidate with each other size of a mesh axis and each other sharding of a named axis."""
    candidates = [prospect.estimate.candidate for prospect in prospects]
    names = {name for candidate in candidates for name in (*candidate.compute, *candidate.parameters)}
    axes = {axis for candidate in candidates for axis in candidate.mesh}
    compiled_keys = {evaluation.candidate.key for evaluation in evaluations}
    failed_layers = {evaluation.candidate.layers for evaluation in evaluations if evaluation.problem} - {()}
    listed_choices: set[tuple[Any, ...]] = set()
    for evaluation in evaluations:
        listed_choices.update(_list_choices(evaluation.candidate, names, axes))
    alternatives: list[Evaluation] = []
    for prospect in prospects:
        candidate = prospect.estimate.candidate
        if candidate.layers in failed_layers:
            continue
        choices = set(_list_choices(candidate, names, axes))
        if not choices <= listed_choices and candidate.key not in compiled_keys:
            alternatives.append(prospect.estimate)
            listed_choices |= choices
    return alternatives


def _list_choices(candidate: Candidate, names: set[str], axes: set[str]) -> Iterator[tuple[Any, ...]]:
    """Yields what a candidate chooses for each name, mesh axis, option and size, and its policy."""
    for name in names:
        yield "compute", name, candidate.compute.get(name, ())
        yield "parameters", name, candidate.parameters.get(name, ())
    for axis in axes:
        yield "mesh", axis, candidate.mesh.get(axis, 1)
    yield "policy", candidate.policy
    yield "gather", candidate.gather
    yield "state", candidate.has_offloaded_state
    for name, value in candidate.options.items():
        yield "option", name, repr(value)
    for name, size in candidate.sizes.items():
        yield "size", name, size
    yield "sizes", candidate.key.sizes


def _count_work(variants: Sequence[StepVariant], serve: str | None) -> list[StepVariant]:
    """Returns steps with their tokens, samples and operations, which are the same for all policies and options.

    Those that serve have their sequences instead of operations: reading memory takes most of their time.
    """
    if serve is not None:
        _check_serve(serve, variants[0].named_program)
        counts = [max(variant.named_program.sizes[serve]) for variant in variants]
        return [
            replace(
                variant,
                tokens=_count_tokens(variant, 1),
                samples=count,
                sequences=count,
                named_program=replace(variant.named_program, layer_names=()),  # stages would wait for each other
            )
            for variant, count in zip(variants, counts, strict=True)
        ]
    flops_by_sizes: dict[tuple[int, ...], float] = {}
    counted: list[StepVariant] = []
    for variant in variants:
        sizes = (*variant.sizes.values(),)
        if sizes not in flops_by_sizes:
            flops_by_sizes[sizes] = count_model_flops(variant)
        tokens, samples = _count_tokens(variant, 2), _count_samples(variant)
        counted.append(replace(variant, tokens=tokens, samples=samples, model_flops=flops_by_sizes[sizes]))
    return counted


def _check_serve(serve: Any, named_program: NamedProgram) -> None:
    if not isinstance(serve, str):
        raise TypeError(f"`serve` is the name of the axis of sequences, such as 'batch', not {serve!r}")
    names = named_program.data_names
    if serve not in names:
        raise ValueError(
            f"`serve` is {serve!r}, which is no axis of the data{suggest_name(serve, names)}; these are axes that only "
            f"arguments after the first have: {', '.join(names) or 'there are none'}"
        )


def _count_samples(variant: StepVariant) -> int:
    """Returns the size of the axis of the data that most of its arrays have; 0 if there is none."""
    names = variant.named_program.data_names
    axes = collections.Counter(name for array in _list_arrays(variant) for name in array.names if name in names)
    return max(variant.named_program.sizes[max(names, key=axes.__getitem__)]) if names else 0


def _count_tokens(variant: StepVariant, least_axes: int) -> int:
    """Returns the elements of the largest array of integers with that many axes at least; 0 if none has.

    Such are batch and positions, of which one is an axis of the data: parameters may have positions, too. Bytes, such
    as those of images, are no tokens.
    """
    names = set(variant.named_program.data_names)
    tokens = [
        array.array.size
        for array in _list_arrays(variant)
        if jnp.issubdtype(array.dtype, jnp.integer) and array.dtype.itemsize > 1
        if array.ndim >= least_axes and not names.isdisjoint(array.names)
    ]
    return max(tokens, default=0)


def _list_arrays(variant: StepVariant) -> list[NamedArray]:
    leaves = jax.tree.leaves(variant.args, is_leaf=is_named_array)
    # `eqx.partition` puts None in the place of an array.
    return [leaf for leaf in leaves if isinstance(leaf, NamedArray) and leaf.array is not None]
