"""Rooms that can be left out: in copies of the package without some folders, everything else works."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[1]
IMPORT_ALL = """
import importlib, pkgutil, axonym
for module in pkgutil.walk_packages(axonym.__path__, "axonym."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
USE_LAYERS = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
import axonym as nym
Embed, Mlp = nym.make_axes(embed=8, mlp=16)
mapping = {"batch": "data", "mlp": "model"}
for axis_types in ("auto", "explicit"):
    with jax.set_mesh(nym.create_mesh({"data": 4, "model": 2}, axis_types=axis_types)), nym.axis_mapping(mapping):
        layer = nym.shard(nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0)))
        x = nym.shard(nym.ones({"batch": 8, "embed": 8}))
        gradient = nym.named_jit(jax.grad(lambda x: layer(x).sum().scalar()))(x)
        assert nym.named_jit(layer)(x).sharding.spec == jax.P("data", "model"), axis_types
        assert gradient.sharding.spec[0] == "data"
try:
    nym.axis_mapping(mapping, policy="full")
except ImportError as error:
    assert "needs `axonym.training`" in str(error)
else:
    raise AssertionError("A policy is taken without what reads it.")
print("sharded, and no policy")
"""


class _RoomRemover(ast.NodeTransformer):
    """Removes what imports some rooms from the module of the package."""

    def __init__(self, rooms: set[str]) -> None:
        self.rooms = rooms

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        if node.module is None:
            node.names = [alias for alias in node.names if alias.name not in self.rooms]
        elif node.module.split(".")[0] in self.rooms:
            return None
        return node


def copy_without(folder: Path, rooms: set[str]) -> None:
    """Copies the package and its tests, without some folders of the package."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "axonym", folder / "axonym", ignore=ignored)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for room in rooms:
        shutil.rmtree(folder / "axonym" / room)
    init = folder / "axonym" / "__init__.py"
    init.write_text(ast.unparse(_RoomRemover(rooms).visit(ast.parse(init.read_text()))))


def run_python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def test_everything_works_without_the_planner_and_haliax(tmp_path: Path):
    copy_without(tmp_path, {"planner", "haliax"})
    run_python(tmp_path, "-c", IMPORT_ALL)
    files = [
        "ground/test_atomic_file.py",
        "axis/test_specs.py",
        "mesh/test_describe.py",
        "partitioning/test_resolve_spec.py",
    ]
    tests = [f"tests/{file}" for file in (*files, "rules/test_role_rule.py", "tree/test_tree.py")]
    text = run_python(tmp_path, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests)
    assert " passed" in text


def test_arrays_and_layers_work_without_training_and_reports(tmp_path: Path):
    copy_without(tmp_path, {"planner", "haliax", "training", "report"})
    assert run_python(tmp_path, "-c", USE_LAYERS) == "sharded, and no policy\n"
