"""What `import axonym` does: read in a fresh process, in which warnings are errors, without a clock."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest


CODE = """
import json
import sys

import jax
import equinox

compiling = []
jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **kwargs: compiling.append(event))
jax.monitoring.register_event_listener(lambda event, **kwargs: compiling.append(event))
before = set(sys.modules)
import axonym as nym
lazy = ("haliax", "checkpoint", "data", "nn", "planner", "quantization")
on_demand = [name for name in lazy if f"axonym.{name}" in sys.modules]
for name in dir(nym):
    getattr(nym, name)
found = {"new": sorted(set(sys.modules) - before), "compiling": list(compiling), "on_demand": on_demand}
jax.config.update("jax_num_cpu_devices", 3)  # an error if there are devices already
found["devices"] = jax.device_count()

class Model(equinox.Module):
    weights: list[nym.NamedArray]

given = Model([nym.ones({"embed": 2}) for _ in range(3)])
fn = nym.named_jit(lambda model: Model([weight * 2 for weight in model.weights]))
result = fn(fn(given))
events = []
sys.addaudithook(lambda event, args: events.append(event))
events.clear()
result = fn(given)
found["call"] = list(events)
events.clear()
object.__setattr__(result.weights[0], "__class__", nym.NamedArray)
found["change of class"] = list(events)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    environment["JAX_PLATFORMS"] = "cpu"
    return json.loads(subprocess.check_output([sys.executable, "-W", "error", "-c", CODE], env=environment, text=True))


def test_the_import_needs_few_modules_beyond_those_of_jax_and_equinox(found: dict[str, Any]):
    assert "axonym" in found["new"]
    others = {name for name in found["new"] if name.partition(".")[0] != "axonym"}
    standard = {"_queue", "colorsys", "concurrent.futures.thread", "decimal", "_decimal", "fractions", "mmap"}
    standard |= {"numbers", "queue", "unicodedata", "jax.ad_checkpoint"}
    assert others <= standard | {"jax.experimental.mesh_utils", "jax.experimental.multihost_utils"}


def test_what_many_programs_do_not_use_is_imported_on_demand(found: dict[str, Any]):
    assert found["on_demand"] == [] and {"axonym.checkpoint", "axonym.nn", "axonym.planner"} <= {*found["new"]}


def test_the_import_compiles_nothing_and_starts_no_backend(found: dict[str, Any]):
    assert found["compiling"] == []
    assert found["devices"] == 3


def test_a_model_as_the_result_of_a_call_raises_no_audit_event_for_its_arrays(found: dict[str, Any]):
    """A change of class raises one, and each is slow where something listens; a hook cannot be removed again."""
    assert "object.__setattr__" in found["change of class"]
    assert "object.__setattr__" not in found["call"]
