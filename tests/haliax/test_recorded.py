"""`axonym.haliax` returns what Haliax returned, and takes the same parameters, as `tools/record_haliax.py` recorded."""

import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import axonym as nym
import axonym.haliax as hax


FOLDER = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("haliax_expressions", FOLDER / "expressions.py")
assert SPEC is not None and SPEC.loader is not None
EXPRESSIONS: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXPRESSIONS)
RECORDED = json.loads((FOLDER / "recorded.json").read_text())
PARAMETERS = json.loads((FOLDER / "parameters.json").read_text())

# What stays different: how arrays and references are held, the settings of Haliax's own kernels, and annotations.
OTHER_PARAMETERS = {
    "NamedArray.tree_flatten",
    "NamedArray.tree_unflatten",
    "NamedRef",
    "NamedRef.unsafe_buffer_pointer",
    "nn.ragged_dot.RaggedLayout",
    "nn.ragged_dot.TritonBlockConfig",
    "nn.ragged_dot.TritonBlockConfig.fit",
    "nn.ragged_dot.TritonKernelFamily",
    "partitioning.ResourceAxis",
    "partitioning.WrappedCallable",
    "partitioning.WrappedCallable.lower",
    "quantization.Fp8DotGeneralOp",
    "quantization.Int8DotGeneralOp",
    "quantization.Int8DotGeneralOp.accumulate",
    "quantization.Int8DotGeneralOp.to_state_dict",
    "util.StringHolderEnum",
}


def assert_same(found: Any, recorded: Any) -> None:
    """Compares two descriptions; numbers may differ by rounding."""
    if isinstance(recorded, list) and isinstance(found, list):
        assert len(found) == len(recorded)
        for one, other in zip(found, recorded, strict=True):
            assert_same(one, other)
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, abs=3e-3)
    else:
        assert found == recorded


@pytest.mark.parametrize("expression", RECORDED)
def test_result_is_that_of_haliax(expression: str):
    with jax.numpy_rank_promotion("allow"):
        assert_same(EXPRESSIONS.describe(eval(expression, EXPRESSIONS.make_names(hax))), RECORDED[expression])


@pytest.mark.parametrize("row", EXPRESSIONS.list_documented(), ids=lambda row: row[0])
def test_documented_differences_hold(row: tuple[str, str, str]):
    expression, in_haliax, here = row
    recorded = RECORDED[expression]
    assert (recorded if isinstance(recorded, str) else str(recorded)) == in_haliax
    assert EXPRESSIONS.describe(eval(expression, EXPRESSIONS.make_names(nym))) == here != in_haliax


def find_by_path(path: str) -> Any:
    """Returns a function, class or method; where a module and a function share a name, the module is meant."""
    *folders, name = path.split(".")
    thing, prefix = hax, "axonym.haliax"
    for folder in folders:
        prefix = f"{prefix}.{folder}"
        thing = sys.modules.get(prefix, getattr(thing, folder, None))
    return getattr(thing, name, None)


def accepts(path: str, by_position: list[str], by_keyword: list[str]) -> bool:
    """Returns whether a function takes the parameters of Haliax's by the same names and in the same order."""
    function = find_by_path(path)
    parameters = EXPRESSIONS.describe_parameters(function)
    if parameters is None:
        return path == "Named" or path.startswith("haxtyping.")  # annotations, which are subscripted
    ours, keywords = parameters
    is_method = inspect.isclass(find_by_path(path.rpartition(".")[0]) if "." in path else None)
    orders = [ours, ours[1:]] if is_method else [ours]  # methods are functions whose first parameter is the array
    kinds = {one.kind for one in inspect.signature(function).parameters.values()}
    is_open = inspect.Parameter.VAR_KEYWORD in kinds
    has_keywords = is_open or set(by_keyword) <= {*ours, *keywords}
    return has_keywords and any(order[: len(by_position)] == by_position for order in orders)


def test_parameters_have_the_names_and_the_order_of_haliax():
    different = {path for path, parameters in PARAMETERS.items() if not accepts(path, *parameters)}
    known = {path for path in different if path in OTHER_PARAMETERS or path.partition(".")[2] in OTHER_PARAMETERS}
    assert different - known == set()
    assert OTHER_PARAMETERS <= known
    assert len(PARAMETERS) > 700


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("hax.nn.Dropout().pdrop", 0.5),
        ("hax.tree_checkpoint_name(x=hax.ones(A), name='a').array.sum().item()", 2.0),
        ("list(hax.state_dict.to_numpy_state_dict(model={'w': hax.ones(A)}, prefix='p'))", ["p.w"]),
        ("hax.state_dict.unflatten_modules_from_export(t={'w': 1.0}, template={'w': 2.0})", {"w": 1.0}),
        (
            "hax.nn.ragged_dot(jnp.ones((1, 2)), jnp.ones((1, 2, 1)), jnp.ones(1, int), implementation='xla').item()",
            2.0,
        ),
        ("hax.nn.ConvTranspose('s', A, B, None, None, 3, 1, 0, 9, 1, 1).output_padding", 9),
    ],
)
def test_names_of_parameters_are_accepted(call: str, expected: Any):
    assert eval(call, EXPRESSIONS.make_names(hax)) == expected


def test_haliax_names_no_other_implementation():
    with pytest.raises(ValueError, match=r"`implementation` is one of auto, megablox, .*, xla, not 'cuda'"):
        hax.nn.ragged_dot(jax.numpy.ones((1, 2)), jax.numpy.ones((1, 2, 1)), jax.numpy.ones(1, int), False, "cuda")  # pyright: ignore
