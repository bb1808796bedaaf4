"""What holds for the code as a whole: sizes, docstrings, examples that run, imports."""

import ast
import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "axonym"
MODULES = sorted(PACKAGE.rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PARTS = {"mesh", "multihost", "named", "partitioning", "report"}  # Users reach what is in these through `axonym`.
EXPECTING = {"pytest.raises", "pytest.warns"}
PRIVATE_JAX = ("jax._src", "jax.interpreters", "jax.core")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def per_file(files: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", files, ids=lambda file: str(file.relative_to(ROOT)))


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text()))


def at(file: Path, node: Any) -> str:
    return f"{file.relative_to(ROOT)}:{node.lineno}"


def lines_without_docstring(function: Function) -> int:
    first = function.body[0]
    docstring = 0
    if ast.get_docstring(function) is not None:
        docstring = first.end_lineno - first.lineno + 1
    return function.end_lineno - function.lineno + 1 - docstring


@per_file(MODULES)
def test_file_is_short_and_says_what_it_is(file: Path):
    text = file.read_text()
    lines = text.count("\n")
    assert lines <= 400
    assert ast.get_docstring(ast.parse(text)), "The module has no docstring."


@per_file(MODULES)
def test_functions_are_short(file: Path):
    functions = [node for node in nodes(file) if isinstance(node, Function)]
    long = [at(file, node) for node in functions if lines_without_docstring(node) > 40]
    assert not long, "These have more than 40 lines."


def imported(node: ast.AST) -> list[str]:
    """Returns the full names that an import statement or a chain of attributes refers to."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute):
        return [ast.unparse(node)]
    return []


@per_file(MODULES + EXAMPLES)
def test_uses_only_what_jax_makes_public(file: Path):
    private = [
        f"{at(file, node)} {name}"
        for node in nodes(file)
        for name in imported(node)
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in PRIVATE_JAX)
    ]
    assert not private


def imports_axonym(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] == "axonym"
    return any(name.split(".")[0] == "axonym" for name in imported(node))


@per_file(MODULES)
def test_imports_within_the_package_are_relative_and_at_the_top(file: Path):
    tree = list(nodes(file))
    functions = [node for node in tree if isinstance(node, Function)]
    inside = [node for function in functions for node in ast.walk(function)]
    bad = [
        at(file, node)
        for node in tree
        if isinstance(node, ast.Import | ast.ImportFrom) and imports_axonym(node)
        if isinstance(node, ast.Import) or not node.level or node in inside
    ]
    assert not bad


def imported_from(file: Path, node: ast.ImportFrom) -> Path:
    """Returns the folder, or the file without its suffix, that a relative import is from."""
    return file.parents[node.level - 1].joinpath(*(node.module or "").split("."))


@per_file(MODULES)
def test_no_module_imports_from_a_package_that_it_is_in(file: Path):
    cyclic = [
        f"{at(file, node)} {alias.name}"
        for node in nodes(file)
        if isinstance(node, ast.ImportFrom) and imported_from(file, node) in file.parents
        for alias in node.names
        if not list(imported_from(file, node).glob(f"{alias.name}*"))
    ]
    assert not cyclic, "The package imports this module, so its own names are not there yet."


@per_file(TESTS)
def test_expected_errors_and_warnings_say_which(file: Path):
    unmatched = [
        at(file, node)
        for node in nodes(file)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in EXPECTING
        if "match" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not unmatched, "These have no `match`."


def declared(node: ast.stmt) -> list[str]:
    """Returns what a statement makes public: `X as X` of an import, or the name that it defines."""
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names if alias.asname == alias.name]
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def public_names(module: ModuleType) -> Iterator[tuple[str, Any]]:
    tree = ast.parse(inspect.getsource(module))
    for name in [name for node in tree.body for name in declared(node)]:
        thing = getattr(module, name)
        own = (getattr(thing, "__module__", None) or "").split(".")[0] == "axonym"
        if not name.startswith("_") and callable(thing) and own:
            yield f"{module.__name__}.{name}", thing


def public_things() -> list[Any]:
    """Returns each public function and class, by the name under which users know it."""
    found = [path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"]
    namespaces = sorted(name for name in found if not name.startswith("_") and name not in PARTS)
    modules = [importlib.import_module(f"axonym.{name}") for name in namespaces]
    things = {}
    for module in [importlib.import_module("axonym"), *modules]:
        things.update(public_names(module))
    return [pytest.param(name, thing, id=name) for name, thing in things.items()]


def documented(name: str, thing: Any) -> Iterator[tuple[str, str]]:
    """Returns the docstring of a thing, and those of the methods that it defines itself."""
    yield name, inspect.cleandoc(thing.__doc__ or "")
    if isinstance(thing, type):
        for key, member in vars(thing).items():
            function = inspect.unwrap(getattr(member, "fget", None) or getattr(thing, key))
            if getattr(function, "__qualname__", "").startswith(f"{thing.__qualname__}."):
                yield f"{name}.{key}", inspect.getdoc(function) or ""


@pytest.mark.parametrize(("name", "thing"), public_things())
def test_public_thing_has_an_example_that_runs(name: str, thing: Any):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    report: list[str] = []
    for where, docstring in documented(name, thing):
        globs = {"__name__": "__main__"}
        examples = doctest.DocTestParser().get_doctest(docstring, globs, where, where, 0)
        runner.run(examples, out=report.append)
    assert thing.__doc__, "It has no docstring."
    assert runner.tries, "Its docstring has no example."
    if runner.failures:
        pytest.fail("".join(report), pytrace=False)
