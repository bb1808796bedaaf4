"""Checks how the functions that are not public are named: `python tools/check_names.py` prints the counts.

Functions start with a verb and carry their noun. Of the functions and methods that are not public, those nested in
other functions aside, at most 25 % have a name of one word and at most 8 % begin with a participle; no two modules
define a function of the same name that is not public.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


PACKAGE = Path(__file__).parents[1] / "axonym"
MOST_ONE_WORD, MOST_PARTICIPLES = 0.25, 0.08
PARTICIPLES = set(
    "begun bound broken brought built chosen drawn driven fallen found given gone got held hidden kept known laid led "
    "left lost made meant met said seen sent shown spoken stood taken thought told torn understood worn written".split()
)
VERBS = {"embed", "need", "feed", "seed", "speed", "exceed", "proceed", "bring", "ping", "ring", "string"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_public_names() -> set[str]:
    """Returns what an `__init__.py` of the package re-exports as `X as X`."""
    names = set()
    for file in PACKAGE.rglob("__init__.py"):
        if any(part.startswith("_") for part in file.relative_to(PACKAGE).parts[:-1]):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names if alias.asname == alias.name}
    return names


def find_functions(
    node: ast.AST, public: bool, public_names: set[str], depth: int = 0
) -> Iterator[tuple[str, int, bool]]:
    """Yields the name of each function and method of a node, how deep in classes it is, and whether it is public."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            is_public = not child.name.startswith("_") and (public if depth else child.name in public_names)
            yield child.name, depth, is_public
        elif isinstance(child, ast.ClassDef):
            inside = not child.name.startswith("_") and (public if depth else child.name in public_names)
            yield from find_functions(child, inside, public_names, depth + 1)
        else:
            yield from find_functions(child, public, public_names, depth)


def is_participle(word: str) -> bool:
    """Returns whether a word reads as a participle."""
    return word not in VERBS and (word in PARTICIPLES or bool(re.fullmatch(r"\w{2,}(ed|ing)", word)))


def main() -> int:
    """Prints the counts and what breaks the rules; returns 1 if anything does."""
    public_names = find_public_names()
    names: list[tuple[str, str]] = []
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        where = str(file.relative_to(PACKAGE.parent))
        found = set(find_functions(ast.parse(file.read_text()), False, public_names))
        for name, depth, public in sorted(found):
            if not public and not name.startswith("__"):
                names.append((where, name))
                if not depth:
                    modules[name].add(where)
    words = [(where, name, name.strip("_").split("_")) for where, name in names]
    one_word = [f"{where} {name}" for where, name, parts in words if len(parts) == 1]
    participles = [f"{where} {name}" for where, name, parts in words if is_participle(parts[0])]
    repeated = [f"{name}: {', '.join(sorted(where))}" for name, where in sorted(modules.items()) if len(where) > 1]
    print(
        f"{len(names)} functions are not public: {len(one_word) / len(names):.1%} have a name of one word, "
        f"{len(participles) / len(names):.1%} begin with a participle, {len(repeated)} names occur in two modules"
    )
    rules = (
        (one_word, MOST_ONE_WORD * len(names)),
        (participles, MOST_PARTICIPLES * len(names)),
        (repeated, 0),
    )
    broken = [line for offenders, most in rules if len(offenders) > most or "-v" in sys.argv for line in offenders]
    print(*broken, sep="\n", end="\n" if broken else "")
    return int(any(len(offenders) > most for offenders, most in rules))


if __name__ == "__main__":
    sys.exit(main())
