"""Gradients of layers under the transformations of training, on meshes, against those on one device."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import axonym as nym
from axonym import nn

from . import layers
from .cases import Case, axis, compare, list_arrays


AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
Depth, Ensemble = nym.make_axes(depth=2, ensemble=2)
LOSS = Case(
    "nn.fused_cross_entropy",
    lambda x, w, targets: nn.fused_cross_entropy(x, w, targets, "embed", "vocab", block_size=4),
    ("batch embed", "vocab embed", lambda key: nym.zeros(axis("batch"), int)),
)
"""With targets that are divided as the batch is."""
NOT_DIVISIBLE = ("nn.MoELinear", "nn.load_balance_loss", "nn.Embedding nn.MupEmbedding")
"""Depth without examples that could be divided between devices or microbatches."""


class Problem:
    """A case of the table as a loss of parameters and examples, and the mappings that shard both.

    Attributes:
        parameters: The arguments without an axis of examples.
        examples: The other arguments.
        batch: The axis of examples.
        compute: A mapping that shards the examples and, by tensor parallelism, an axis of the parameters.
        stored: The same, and another axis of the parameters over the mesh axis of the examples.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        arguments = jax.tree.map(jnp.asarray, case.make_arguments())
        self.batch = "batch"
        self._is_example = [nym.is_named_array(x) and self.batch in x.names for x in arguments]
        self.parameters = [x for x, is_example in zip(arguments, self._is_example, strict=True) if not is_example]
        self.examples = [x for x, is_example in zip(arguments, self._is_example, strict=True) if is_example]
        names = {name for array in list_arrays(arguments) for name in array.names}
        tensor_name = next((name for name in ("mlp", "vocab", "experts", "heads") if name in names), None)
        entries = {self.batch: "data"} if tensor_name is None else {self.batch: "data", tensor_name: "model"}
        self.compute = nym.AxisMapping(entries, uneven="replicate")
        parameter_names = {name for array in list_arrays(self.parameters) for name in array.names}
        stored_names = sorted(parameter_names.intersection(("embed", "head_dim")))
        self.stored = self.compute.merged(dict.fromkeys(stored_names[:1], "data"))

    def __str__(self) -> str:
        return str(self._case)

    def compute_results(self, parameters: list[Any], examples: list[Any]) -> list[nym.NamedArray]:
        """Returns the results that are floats."""
        next_parameter, next_example = iter(parameters).__next__, iter(examples).__next__
        arguments = [next_example() if is_example else next_parameter() for is_example in self._is_example]
        return [x for x in list_arrays(self._case.fn(*arguments)) if jnp.issubdtype(x.dtype, jnp.floating)]

    def compute_loss(self, parameters: list[Any], examples: list[Any]) -> Any:
        """Returns a mean over the examples, in which the elements of an example have weights."""
        return sum(self._average(x) for x in self.compute_results(parameters, examples))

    def _average(self, x: nym.NamedArray) -> Any:
        names = tuple(name for name in x.names if name != self.batch)
        sizes = tuple(x.axis_size(name) for name in names)
        weights = np.cos(1 + np.arange(np.prod(sizes, dtype=int), dtype=np.float32)).reshape(sizes)
        return (nym.sin(x) * nym.named(jnp.asarray(weights), names)).mean().scalar()

    def differentiate(self, parameters: list[Any], examples: list[Any]) -> Any:
        return eqx.filter_grad(self.compute_loss)(parameters, examples)


def accumulate(problem: Problem, parameters: list[Any], examples: list[Any]) -> Any:
    return nym.microbatch(problem.differentiate, problem.batch, 2)(parameters, examples)


def reduce_once(problem: Problem, parameters: list[Any], examples: list[Any]) -> Any:
    if not jax.sharding.get_abstract_mesh().empty:
        return nym.microbatch(problem.differentiate, problem.batch, 1, reduce_once=True)(parameters, examples)
    # Each of two devices has a half of the examples, which matters to layers that mix these.
    halves = [nym.stack("half", nym.split(x, problem.batch, (nym.Axis(problem.batch, 2),) * 2)) for x in examples]
    gradients = nym.map(lambda half: problem.differentiate(parameters, half), "half")(halves)
    return jax.tree.map(lambda x: x.mean("half"), gradients, is_leaf=nym.is_named_array)


def map_over_inputs(problem: Problem, parameters: list[Any], examples: list[Any]) -> Any:
    def compute_loss(parameters: list[Any]) -> Any:
        inputs = [
            nym.stack(Ensemble.name, [x, x / 2 if jnp.issubdtype(x.dtype, jnp.floating) else x]) for x in examples
        ]
        return nym.vmap(lambda *inputs: problem.compute_loss(parameters, [*inputs]), Ensemble)(*inputs).mean()

    return eqx.filter_grad(compute_loss)(parameters)


def train_replicas(problem: Problem, parameters: list[Any], examples: list[Any]) -> Any:
    def step(parameters: list[Any], state: None, *examples: Any) -> Any:
        gradients = problem.differentiate(parameters, [*examples])
        return eqx.apply_updates(parameters, gradients), state, None

    run = nym.diloco(step, every=1, learning_rate=1.0, replicas=2)
    return run(run.init(parameters, None), *examples)[0].anchor


def run_stages(problem: Problem, parameters: list[Any], examples: list[Any]) -> Any:
    x, *constants = examples

    def apply(layer: Any, x: nym.NamedArray, *constants: Any) -> nym.NamedArray:
        for result in problem.compute_results(layer, [x, *constants]):
            if problem.batch not in result.names:  # a mean over a microbatch
                continue
            other_names = [name for name in result.names if name not in x.names]
            x = x + nym.tanh(result).mean(other_names) / 4
        return x

    def compute_loss(parameters: list[Any]) -> Any:
        stacked = nn.Stacked(jax.tree.map(_stack_layers, parameters, is_leaf=nym.is_named_array), Depth)
        return (stacked.fold_via(apply)(x, *constants) ** 2).mean().scalar()

    return eqx.filter_grad(compute_loss)(parameters)


def _stack_layers(leaf: Any) -> Any:
    return nym.stack(Depth.name, [leaf, leaf / 2]) if nym.is_named_array(leaf) else leaf


class Way(NamedTuple):
    """A transformation and where its gradients are compared."""

    transform: Callable[[Problem, list[Any], list[Any]], Any]
    entries: dict[str, str]
    """The mapping of its axis."""
    mixed_types: tuple[AxisType, AxisType, AxisType]
    """The types of the mesh axes on a mesh of both types."""
    kind: str
    """The kind of mesh that is not left to the night."""
    layers: tuple[str, ...]
    """How the names of the layers begin that are compared there."""


LINEAR, CONV, EXPERTS, FUSED = "nn.Linear", "nn.Conv {", "nn.MixtureOfExperts with", "nn.fused_cross_entropy"
ALONE, EXAMPLES = "nn.RmsNorm", "nn.BatchNorm"
WAYS = {
    "microbatch": Way(accumulate, {}, (AUTO, AUTO, EXPLICIT), "mixed", (LINEAR, EXAMPLES, FUSED)),
    "reduce once": Way(reduce_once, {}, (AUTO, EXPLICIT, AUTO), "Explicit", (LINEAR, CONV, EXPERTS, FUSED)),
    "vmap": Way(
        map_over_inputs,
        {Ensemble.name: "replica"},
        (EXPLICIT, AUTO, EXPLICIT),
        "Explicit",
        (LINEAR, "nn.Embedding unembed", ALONE, CONV, "nn.dot_product_attention grouped"),
    ),
    "diloco": Way(
        train_replicas, {"replica": "replica"}, (AUTO, EXPLICIT, AUTO), "Explicit", (LINEAR, CONV, EXPERTS, FUSED)
    ),
    "pipeline": Way(run_stages, {Depth.name: "replica"}, (EXPLICIT, AUTO, AUTO), "Auto", (LINEAR, ALONE)),
}
DROPPED = "overlapping", "dilation", "circular", "stride"
"""Variants of layers that take long to compile."""
PIPELINE = LINEAR, "nn.Embedding unembed", ALONE, EXPERTS
"""Those that are layers of a pipeline, which takes longest to compile."""
FAILS_ON_ONE_DEVICE = {("vmap", "nn.MixtureOfExperts nn.MixtureMetrics")}
"""Which JAX cannot compute either; `docs/mixture-of-experts.md` says so."""


def list_problems(way: str, *, is_thorough: bool) -> list[Problem]:
    """Returns all layers that can be computed this way, or those that are compared more often than each night."""
    cases = [case for name, group in layers.GROUPS.items() if name != "losses" for case in group] + [LOSS]
    begins = WAYS[way].layers if not is_thorough else PIPELINE if way == "pipeline" else ("",)
    problems: list[Problem] = []
    for case in cases:
        text = str(case)
        is_left_out = any(word in text for word in DROPPED) or text.startswith(NOT_DIVISIBLE)
        if text.startswith(begins) and not is_left_out and (way, text) not in FAILS_ON_ONE_DEVICE:
            problem = Problem(case)
            if problem.parameters and problem.examples:
                problems.append(problem)
    return problems


def find_problems(way: str, axis_types: tuple[AxisType, ...], problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    """Yields a problem, and how its gradients on a mesh differ from those on one device or which error it raises."""
    transform, entries, *_ = WAYS[way]
    arguments = [(problem.parameters, problem.examples) for problem in problems]

    @eqx.filter_jit
    def compute_all(arguments: Any) -> list[Any]:
        return [transform(problem, *pair) for problem, pair in zip(problems, arguments, strict=True)]

    def compute_on_mesh(problem: Problem, parameters: list[Any], examples: list[Any]) -> Any:
        policy = nym.Policy(microbatches={problem.batch: 2}) if way == "pipeline" else None
        compute, stored = problem.compute | entries, problem.stored | entries
        placed = None, stored, compute
        try:
            step = nym.fsdp(transform, stored, compute, policy=policy, in_axis_resources=placed)
            return step(problem, parameters, examples)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    @eqx.filter_jit
    def compute_all_on_mesh(arguments: Any) -> list[Any]:
        return [compute_on_mesh(problem, *pair) for problem, pair in zip(problems, arguments, strict=True)]

    expected = jax.device_get(compute_all(arguments))
    with jax.set_mesh(jax.make_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)):
        results = jax.device_get(compute_all_on_mesh(arguments))
    for problem, result, gradients in zip(problems, results, expected, strict=True):
        if isinstance(result, str):
            yield str(problem), result
            continue
        for x, y in zip(list_arrays(result), list_arrays(gradients), strict=True):
            yield from ((str(problem), text) for text in compare(x, y))
