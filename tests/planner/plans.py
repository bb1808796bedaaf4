"""A plan with the figures of a train step of Llama 3 8B on 256 chips of TPU v5e, and one that does not fit."""

from dataclasses import replace
from typing import Any

from axonym.planner import Candidate, Evaluation, Plan, StepTime, described_devices


GIB, MIB = 2**30, 2**20
DATA, MODEL = ("data",), ("model",)
TENSOR = {"batch": DATA, "heads": MODEL, "mlp": MODEL, "vocab": MODEL}
STORED = {**TENSOR, "embed": DATA}
V5E = described_devices("v5e:16x16")[0].topology
VERSIONS = {"jax": "0.12.0", "libtpu": "0.0.50.1"}


def make_evaluation(
    mesh: dict[str, int],
    compute: Any,
    stored: Any,
    memory: tuple[int, int, int],
    seconds: tuple[float, float, float, float],
    *,
    stage: Any = "compiled",
    policy: str = "recompute",
    microbatches: int = 1,
    **options: Any,
) -> Evaluation:
    """Makes an evaluation: MiB of parameters, state and temporaries; seconds of computing, attention and waits."""
    names = "parameters", "optimizer state", "temporaries"
    groups = {name: size * MIB for name, size in zip(names, memory, strict=True) if size}
    waits = {over: wait for over, wait in zip((DATA, MODEL), seconds[2:], strict=True) if wait}
    source = {"timed": "cycles"}.get(stage, "flops")
    time = StepTime(*seconds[:2], waits, {DATA: 0.25}, 0.0, source, 0.15 if stage == "timed" else 0.3)
    sent = {over: int(wait * 45e9) for over, wait in waits.items()}
    candidate = Candidate(mesh, compute, stored, policy, {"microbatches": microbatches})
    fits = sum(groups.values()) <= 15.75 * GIB
    return Evaluation(candidate, stage, fits, groups, sent, time, **options)


FSDP = {"batch": DATA}
BEST = make_evaluation(
    {"data": 64, "model": 4}, TENSOR, STORED, (120, 240, 9000), (1.5, 0.2, 0.125, 0.25), stage="timed"
)
WHOLE = make_evaluation(
    {"data": 256}, FSDP, {**FSDP, "embed": DATA}, (120, 240, 12400), (1.5, 0.2, 0.75, 0), stage="timed"
)
WIDE = make_evaluation({"data": 16, "model": 16}, TENSOR, STORED, (120, 240, 7400), (1.75, 0.2, 0.0625, 1.25))
SPLIT = make_evaluation(
    {"data": 64, "model": 4}, TENSOR, STORED, (120, 240, 4100), (1.6, 0.2, 0.5, 0.25), microbatches=2
)
KEPT = make_evaluation(
    {"data": 64, "model": 4}, TENSOR, STORED, (120, 240, 31000), (1.2, 0.15, 0.125, 0.25), policy="nothing"
)
SCREENED = make_evaluation({"data": 64, "model": 4}, TENSOR, STORED, (120, 240, 0), (1.4, 0, 0, 0), stage="screened")
REPLICATED = make_evaluation({"data": 256}, FSDP, FSDP, (30633, 61266, 0), (1.5, 0.2, 0.5, 0), stage="screened")
BROKEN = make_evaluation(
    {"data": 128, "model": 2}, TENSOR, STORED, (120, 240, 0), (1.5, 0.2, 0.25, 0.125), problem="the compiler crashed"
)
PRUNED = {"axis 'heads' of size 8 is not divisible by mesh axis 'model'": 96, "the same after exchanging mesh axes": 31}
PLAN = Plan(
    (BEST, WHOLE, SPLIT, WIDE, KEPT, REPLICATED, BROKEN),
    V5E,
    top=3,
    pruned=PRUNED,
    model_flops=8.03e9 * 6 * 2**20,
    tokens=2**20,
    versions=VERSIONS,
    compiler_options={"xla_tpu_enable_latency_hiding_scheduler": True},
    seconds=92.5,
    notes=("Attention is priced at half of the peak.",),
    screened=SCREENED,
)
TOO_LARGE = Plan((KEPT, REPLICATED), V5E, 3, PRUNED, PLAN.model_flops, PLAN.tokens, VERSIONS, {}, 12.0)
EMPTY = Plan((), V5E, 3, PRUNED, 0.0, 0, {}, {}, 0.25)


def make_plan(*evaluations: Evaluation, **changes: Any) -> Plan:
    """Returns the plan above with these evaluations."""
    return replace(PLAN, evaluations=evaluations, **changes)


def choose(evaluation: Evaluation, **changes: Any) -> Evaluation:
    """Returns an evaluation of a candidate that chooses otherwise."""
    return replace(evaluation, candidate=replace(evaluation.candidate, **changes))


def change_time(evaluation: Evaluation, **changes: Any) -> Evaluation:
    return replace(evaluation, time=replace(evaluation.time, **changes))
