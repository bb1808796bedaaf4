"""Results and gradients on meshes with an unused axis, each axis being sharded in turn, against those on one device."""

from collections.abc import Iterator

import jax
import pytest

import axonym as nym
from axonym import nn, quantization

from . import layers, operations
from .cases import Case, find_differences


GROUPS = {**operations.GROUPS, **layers.GROUPS}
EXCEPTIONS = {
    "their results are integers or booleans": """
        all any argmax argmin array_equal array_equiv allclose count_nonzero isin nanargmax nanargmin nonzero packbits
        unpackbits unique_all unique_counts unique_inverse linalg.matrix_rank ndim iscomplex isreal is_named_array
        nn.causal_mask nn.one_hot nn.explain_attention nn.zigzag_positions random.bernoulli random.binomial
        random.categorical random.geometric random.multinomial random.poisson random.rademacher random.randint""",
    "their derivatives are zero or not defined": "fmod gcd lcm frexp ldexp nextafter spacing heaviside",
    "they make arrays, or draw them from numbers alone": """
        arange eye full full_like geomspace linspace logspace named ones ones_like zeros zeros_like fft.fftfreq
        fft.rfftfreq nn.alibi_bias nn.alibi_slopes nn.initialize_weight random.ball random.cauchy random.exponential
        random.generalized_normal random.gumbel random.laplace random.logistic random.maxwell random.normal
        random.orthogonal random.split random.fold_in""",
    "they draw as `random.uniform` does, or by loops whose gradients take long to compile": """
        random.beta random.chisquare random.dirichlet random.f random.gamma random.loggamma random.lognormal
        random.pareto random.rayleigh random.t random.triangular random.truncated_normal random.wald
        random.weibull_min""",
    "they decompose matrices as `linalg.svd` and `linalg.cholesky` do": """
        linalg.lstsq poly.polyfit random.multivariate_normal""",
    "JAX has no derivative of them": "linalg.eig poly.roots poly.trim_zeros",
    "they hold numbers that are not trained": """
        nn.LinearRotaryScaling nn.DynamicRotaryScaling nn.Llama3RotaryScaling nn.RotaryScaling nn.YarnRotaryScaling
        nn.BatchStatistics nn.AttentionChoice nn.PipelineSchedule Shape ScanCheckpointPolicy""",
    "they update parameters": """
        diloco offloaded_optimizer nn.mup_learning_rates quantization.accumulate_gradients quantization.apply_updates
        quantization.partition_overwrites""",
}
"""Public names that no case is for, by the reason."""

NO_OPERATIONS = {
    *("axis", "mesh", "multihost", "jit", "rules", "report", "_axis", "_field", "_logic"),
    *("_active_mapping", "_fsdp", "_leaves", "_mapping", "_policy", "_precision"),
    *("_resolve_spec", "_shard"),
}
"""Modules and packages whose functions are not for arrays, or not for floats."""


@pytest.fixture(autouse=True)
def eight_devices() -> None:
    if jax.device_count() < 8:
        pytest.skip(f"This needs 8 devices, and there are {jax.device_count()}.")


@pytest.mark.parametrize("is_thorough", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("group", GROUPS)
def test_sharded_gradients_are_those_of_one_device(group, is_thorough):
    cases = [case for case in GROUPS[group] if is_thorough or not case.is_thorough]
    problems = find_differences(cases, is_thorough=is_thorough)
    assert not problems, "\n".join(problems)


def double_if_sharded(x: nym.NamedArray) -> nym.NamedArray:
    if not (mapping := nym.current_mapping()) or "b" not in mapping:
        return x
    return nym.named(2 * x.array - jax.lax.stop_gradient(x.array), x.names)


def test_wrong_gradients_are_found():
    found = [problem for problem in find_differences([Case("sin", double_if_sharded, ("a b",))]) if "Auto" in problem]
    mapping = "AxisMapping({'a': 'data', 'b': 'model'}, uneven='replicate')"
    assert found == [f"Auto: sin by {mapping}: gradient 0 is wrong, 2 times what it should be"]


def list_public_names() -> Iterator[str]:
    """Yields what may be an operation or a layer, by its path below `axonym`."""
    spaces = {"": nym, "nn.": nn, "quantization.": quantization}
    spaces |= {f"{name}.": getattr(nym, name) for name in ("fft", "linalg", "poly", "random")}
    for prefix, space in spaces.items():
        for name, thing in vars(space).items():
            modules = (getattr(thing, "__module__", None) or "").split(".")
            if callable(thing) and name[0] != "_" and modules[0] == "axonym" and not NO_OPERATIONS & {*modules}:
                yield prefix + name


def test_each_operation_and_layer_has_a_case_or_a_reason():
    tested = {name for cases in GROUPS.values() for case in cases for name in case.names.split()}
    excepted = {name for names in EXCEPTIONS.values() for name in names.split()}
    public = {*list_public_names()}
    assert public - tested - excepted == set(), "Add a case to `operations.py` or `layers.py`, or a reason."
    assert tested & excepted == set()
    assert (tested | excepted) - public == set(), "These are not public."
