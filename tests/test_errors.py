"""Every error and warning of meshes and partitioning is in the catalogue, `docs/errors.md`, and nothing else is.

What is raised is read from the code: the literal pieces of each message, also those that helpers return, local names
hold or callers pass. A message is in the catalogue if one line of a `text` block has all of its pieces, in order.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest


ROOT = Path(__file__).parents[1]
PARTS = ("mesh", "partitioning")
TEXT = re.compile(r"^```(?P<kind>\w*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)
Place: TypeAlias = tuple[Path, ast.AST | None, ast.AST]
PLACE = re.compile(r"\{\w*\}")  # where `format` puts a value
CONTAINERS = (ast.Constant, ast.JoinedStr, ast.Dict, ast.Tuple, ast.List)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Message(NamedTuple):
    """What is literal in a message, piece by piece, and the line of code that has it."""

    where: str
    pieces: tuple[str, ...]

    def is_in(self, line: str) -> bool:
        at = 0
        for piece in self.pieces:
            found = line.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        return True


class Code:
    """The modules of some parts of the package: their functions and constants, and what they raise."""

    def __init__(self, files: list[Path]) -> None:
        self.functions: dict[str, list[tuple[Path, ast.AST]]] = {}
        self.constants: dict[tuple[Path, str], ast.AST] = {}
        self.calls: dict[str, list[tuple[Path, ast.AST | None, ast.Call]]] = {}
        self.raised: list[Place] = []
        for file in files:
            tree = ast.parse(file.read_text())
            for node in tree.body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, CONTAINERS):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if isinstance(target, ast.Name):
                            self.constants[file, target.id] = node.value
            self._read(file, tree, None)
        self.raising = {function for _, function, _ in self.raised}

    def _read(self, file: Path, node: ast.AST, function: ast.AST | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                self.functions.setdefault(child.name, []).append((file, child))
            if isinstance(child, ast.Call):
                self.calls.setdefault(called(child), []).append((file, function, child))
                if called(child) in ("warn", "add_note"):
                    self.raised += [(file, function, one) for one in child.args[:1]]
            if isinstance(child, ast.Raise) and child.exc is not None:
                self.raised.append((file, function, child.exc))
            self._read(file, child, child if isinstance(child, FUNCTIONS) else function)

    def messages(self) -> set[Message]:
        """Returns the literal pieces of everything that is raised or warned of."""
        found: set[Message] = set()
        seen: set[int] = set()
        queue = [*self.raised]
        while queue:
            file, function, what = queue.pop()
            if id(what) in seen:
                continue
            seen.add(id(what))
            if isinstance(what, ast.JoinedStr | ast.Constant):
                found |= set(literal(file, what))
            queue += self._behind(file, function, what)
        return found

    def _behind(self, file: Path, function: ast.AST | None, what: ast.AST) -> Iterator[Place]:
        """Yields what an expression is made of: its parts, and what its names and calls stand for."""
        text = isinstance(what, ast.JoinedStr)
        for child in ast.iter_child_nodes(what):
            if not (text and isinstance(child, ast.Constant)):
                yield file, function, child
        if isinstance(what, ast.Name):
            yield from self._named(file, function, what.id)
        if isinstance(what, ast.Call):
            yield from self._returned(file, called(what))

    def _named(self, file: Path, function: ast.AST | None, name: str) -> Iterator[Place]:
        """Yields what a name stands for."""
        if (file, name) in self.constants:
            yield file, None, self.constants[file, name]
        if function is not None:
            yield from ((file, function, value) for value in assigned(function, name))
            if function in self.raising:
                yield from self._passed(file, function, name)

    def _returned(self, file: Path, name: str) -> Iterator[Place]:
        """Yields what a function returns, one of the same module if there is one of that name."""
        definitions = self.functions.get(name, ())
        for other, definition in [one for one in definitions if one[0] == file] or definitions:
            for node in ast.walk(definition):
                if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                    yield other, definition, node.value

    def _passed(self, file: Path, function: Any, name: str) -> Iterator[Place]:
        """Yields what a parameter of a function stands for: its default, and what is passed in calls."""
        arguments = function.args
        parameters = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        defaults = dict(zip(reversed(parameters), reversed(arguments.defaults), strict=False))
        defaults |= {one.arg: value for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
        if defaults.get(name) is not None:
            yield file, None, defaults[name]
        for other, caller, call in self.calls.get(function.name, ()):
            if name in parameters:
                yield from ((other, caller, value) for value in call.args[parameters.index(name) :][:1])
            yield from ((other, caller, one.value) for one in call.keywords if one.arg == name)


def assigned(function: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yields the values that a local name is given."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id == name for to in targets for one in ast.walk(to)):
                yield node.value


def called(call: ast.Call) -> str:
    """Returns the name of the function that is called, or of the method of the object itself."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr if isinstance(call.func.value, ast.Name) else ""
    return getattr(call.func, "id", "")


def literal(file: Path, what: ast.JoinedStr | ast.Constant) -> Iterator[Message]:
    """Yields the pieces of a string that say something: a few words at least."""
    values = what.values if isinstance(what, ast.JoinedStr) else [what]
    texts = [one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    pieces = [piece for text in texts for piece in PLACE.split(text)]
    if any(len(piece) > 12 and " " in piece.strip() for piece in pieces):
        kept = tuple(piece.strip() for piece in pieces if len(piece.strip()) > 3)
        yield Message(f"{file.relative_to(ROOT)}:{what.lineno}", kept)


@cache
def messages() -> tuple[Message, ...]:
    files = [file for part in PARTS for file in sorted((ROOT / "axonym" / part).rglob("*.py"))]
    return tuple(sorted(Code(files).messages()))


def catalogue() -> tuple[list[str], list[str]]:
    """Returns the lines of the `text` blocks of the catalogue: all of them, and those that no code above prints."""
    every: list[str] = []
    alone: list[str] = []
    before = ""
    for match in TEXT.finditer((ROOT / "docs" / "errors.md").read_text()):
        if match["kind"] == "text":
            lines = [line for line in match["body"].splitlines() if line.strip()]
            every += lines
            alone += lines if before != "python" else []
        before = match["kind"]
    return every, alone


@pytest.mark.parametrize("part", PARTS)
def test_every_message_is_in_the_catalogue(part: str):
    lines, _ = catalogue()
    own = [one for one in messages() if one.where.startswith(f"axonym/{part}/")]
    assert len(own) > 20
    assert not [one for one in own if not any(one.is_in(line) for line in lines)], "These are not in docs/errors.md."


def test_every_entry_of_the_catalogue_is_a_message():
    _, lines = catalogue()
    assert len(lines) > 20
    known = [one for one in messages() if sum(map(len, one.pieces)) > 20]
    assert not [line for line in lines if not any(one.is_in(line) for one in known)], "Nothing says this any more."
