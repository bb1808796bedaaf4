"""Rules for the code as a whole that ruff and import-linter do not have: docstrings, examples that run, and imports.

A rule is one test, which reads all files and lists every place that breaks it.
"""

import ast
import doctest
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "axonym"
MODULES = sorted(PACKAGE.rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PARTS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("_"))
# Users reach the things in these through `axonym`.
FLAT = {"mesh", "multihost", "named", "partitioning", "report", "rules", "training"}
PRIVATE_JAX = ("jax._src", "jax.interpreters", "jax.core")
RELIED_ON = {  # in _ground.jax_compat
    "jax.core.Tracer",
    "jax._src.core.get_axis_env",
    "jax._src.core.remove_explicit_mesh_axis_names",
    *(f"jax.interpreters.{name}" for name in ("ad", "batching", "mlir")),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def fail_for(offenders: list[str], rule: str) -> None:
    if offenders:
        pytest.fail("\n  ".join([rule, *offenders]), pytrace=False)


def public_things() -> dict[str, dict[str, Any]]:
    """Returns the public functions and classes of each part, by the names under which users know them."""
    found: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    seen: set[int] = set()
    folders = [f"axonym.{part}" for part in PARTS if part not in FLAT]
    for namespace in ("axonym", *folders):
        module = importlib.import_module(namespace)
        for name in dir(module):
            thing = getattr(module, name)
            package, _, inner = (getattr(thing, "__module__", None) or "").partition(".")
            original = id(inspect.unwrap(thing)) if callable(thing) else None  # `axonym.haliax` adapts functions
            if not name.startswith("_") and callable(thing) and package == "axonym" and original not in seen:
                seen.add(original)
                found[inner.split(".")[0]][f"{namespace}.{name}"] = thing
    for file in sorted((PACKAGE / "haliax").rglob("[!_]*.py")):  # its modules are namespaces, which import helpers too
        namespace = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for name, thing in vars(importlib.import_module(namespace)).items():
            if not name.startswith("_") and callable(thing) and thing.__module__ == namespace:
                found["haliax"][f"{namespace}.{name}"] = thing
    return found


def documented(name: str, thing: Any) -> Iterator[tuple[str, str]]:
    """Yields the docstring of a thing, and those of the methods that it defines itself."""
    yield name, inspect.cleandoc(thing.__doc__ or "")
    if isinstance(thing, type):
        for key, member in vars(thing).items():
            function = inspect.unwrap(getattr(member, "fget", None) or getattr(thing, key))
            if getattr(function, "__qualname__", "").startswith(f"{thing.__qualname__}."):
                yield f"{name}.{key}", inspect.getdoc(function) or ""


def run_examples(name: str, thing: Any) -> Iterator[str]:
    """Runs the examples of a thing and yields what is wrong with them."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    report: list[str] = []
    with jax.set_mesh(None):
        for where, docstring in documented(name, thing):
            globs = {"__name__": "__main__"}
            runner.run(doctest.DocTestParser().get_doctest(docstring, globs, where, where, 0), out=report.append)
    if not thing.__doc__:
        yield f"{name} has no docstring"
    elif runner.failures:
        yield "".join(report)


# Distributions take long to compile, and have tests of their own.
IN_PARTS = [pytest.param(part, marks=[pytest.mark.thorough] * (part == "random")) for part in PARTS if part != "typing"]


@pytest.mark.parametrize("part", IN_PARTS)
def test_examples_of_public_things_run(part: str):
    things = public_things()[part]
    assert things
    wrong = [each for name, thing in things.items() for each in run_examples(name, thing)]
    fail_for(wrong, "A public function or class has a docstring, whose examples run.")


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """Lets go of the parsed files, which would slow the garbage collector down in all later tests."""
    yield
    parse.cache_clear()


def walk(files: list[Path], *kinds: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    """Yields the nodes of these kinds in some files, each with its file."""
    for file in files:
        yield from ((file, node) for node in ast.walk(parse(file)) if isinstance(node, kinds))


def at(file: Path, node: Any) -> str:
    return f"{file.relative_to(ROOT)}:{node.lineno}"


def test_modules_have_docstrings():
    bare = [str(file.relative_to(ROOT)) for file in MODULES if not ast.get_docstring(parse(file))]
    fail_for(bare, "A module has a docstring.")


def imported_names(node: ast.AST) -> list[str]:
    """Returns the full names that an import statement or a chain of attributes refers to."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [f"{node.module}.{alias.name}" for alias in node.names]
    return [ast.unparse(node)]


def test_only_public_jax_is_used():
    private = [
        f"{at(file, node)} {name}"
        for file, node in walk(MODULES + EXAMPLES, ast.Import, ast.ImportFrom, ast.Attribute)
        for name in imported_names(node)
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in PRIVATE_JAX)
        if file.name != "jax_compat.py" or name not in RELIED_ON
    ]
    fail_for(private, "Only what JAX makes public is used.")


def test_imports_of_the_package_are_relative_and_at_the_top():
    absolute = [
        f"{at(file, node)} is not relative"
        for file, node in walk(MODULES, ast.Import, ast.ImportFrom)
        if any(name.split(".")[0] == "axonym" for name in imported_names(node))
    ]
    nested = {
        f"{at(file, node)} is in a function"
        for file, function in walk(MODULES, Function)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.level
    }
    fail_for([*absolute, *sorted(nested)], "Imports within the package are relative and at the top of the file.")


def imported_from(file: Path, node: ast.ImportFrom) -> Path:
    """Returns the folder, or the file without its suffix, that a relative import is from."""
    return file.parents[node.level - 1].joinpath(*(node.module or "").split("."))


def test_no_module_imports_from_a_package_that_it_is_in():
    cyclic = [
        f"{at(file, node)} {alias.name}"
        for file, node in walk(MODULES, ast.ImportFrom)
        if imported_from(file, node) in file.parents
        for alias in node.names
        if not list(imported_from(file, node).glob(f"{alias.name}*"))
    ]
    fail_for(cyclic, "The package imports this module, so its own names are not there yet.")
