"""What `import axonym` does, and what it leaves until it is needed: read in fresh processes, without a clock."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import axonym as nym


CODE = """
import json
import sys

import jax
import equinox

compiling = []
jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **kwargs: compiling.append(event))
jax.monitoring.register_event_listener(lambda event, **kwargs: compiling.append(event))
found = {"before": list(sys.modules)}
import axonym as nym
found["after"] = list(sys.modules)
nym.create_mesh
found["used"] = list(sys.modules)
for name in nym.__all__:
    getattr(nym, name)
found["all"] = list(sys.modules)
found["compiling"] = list(compiling)
jax.config.update("jax_num_cpu_devices", 3)  # an error if there are devices already
found["devices"] = jax.device_count()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    environment["JAX_PLATFORMS"] = "cpu"
    return json.loads(subprocess.check_output([sys.executable, "-c", CODE], env=environment, text=True))


def parts(modules: set[str]) -> set[str]:
    return {".".join(name.split(".")[:2]) for name in modules if name.startswith("axonym.")}


def others(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] != "axonym"}


def test_the_import_loads_named_arrays_and_nothing_else(found: dict[str, Any]):
    new = set(found["after"]) - set(found["before"])
    assert parts(new) == {"axonym.axis", "axonym.named"}
    assert others(new) <= {"jax.ad_checkpoint"}


def test_a_part_is_loaded_when_it_is_first_used(found: dict[str, Any]):
    new = set(found["used"]) - set(found["after"])
    assert parts(new) == {"axonym._later", "axonym.mesh", "axonym.partitioning"}


def test_all_parts_together_need_no_module_but_these(found: dict[str, Any]):
    assert others(set(found["all"]) - set(found["after"])) <= {
        "colorsys",
        "decimal",
        "_decimal",
        "fractions",
        "numbers",
        "unicodedata",
        "jax.experimental.mesh_utils",
        "jax.experimental.multihost_utils",
    }


def test_no_import_compiles_anything_or_starts_a_backend(found: dict[str, Any]):
    assert found["compiling"] == []
    assert found["devices"] == 3


def test_the_flat_namespace_has_everything_that_is_loaded_later():
    from axonym import _later

    later = {name: thing for name, thing in vars(_later).items() if not name.startswith("_")}
    assert len(later) > 50
    assert later.keys() <= set(dir(nym))
    assert all(getattr(nym, name) is thing for name, thing in later.items())
    everything: dict[str, Any] = {}
    exec("from axonym import *", everything)
    assert later.keys() | {"nn", "linalg", "named", "exp"} <= everything.keys()


@pytest.mark.parametrize("name", ["create_mehs", "NamedJit", "__wrapped__"])
def test_what_is_not_there_is_an_attribute_error(name: str):
    with pytest.raises(AttributeError, match=f"^module 'axonym' has no attribute '{name}'$"):
        getattr(nym, name)
