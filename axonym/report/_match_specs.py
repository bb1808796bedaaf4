"""The arrays of a tree with the specs given for them, and all problems of these specs; none is raised."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.sharding import NamedSharding, PartitionSpec as P, Sharding
from jax.tree_util import keystr

from ..named._array import NamedArray
from ..named._format import suggest_name
from ..named._traceback import strip_library_frames
from ..partitioning.mapping._mapping import AxisMapping
from ..partitioning.rules._rule_tree import RuleTree
from ..partitioning.rules._sharding_rule import ShardingRule, explain_decisions
from ..partitioning.sharding._partition_specs import is_same_mesh
from ..partitioning.specs._active_mesh import MeshLike, format_mesh
from ..partitioning.specs._leaves import Leaf, describe_leaves, get_array_shape
from ..partitioning.specs._spec_problems import find_spec_problems, get_first_line


_REMEDY = "give its `PartitionSpec`"
_NO_LEAF = object()


class MatchedSpec(NamedTuple):
    """An array, its place in the tree, its spec if that is clear, the problems of it, and the rule's reason for it."""

    array: Any
    about: Leaf
    spec: P | None
    problems: tuple[str, ...] = ()
    source: str = ""


class _Problem(NamedTuple):
    """A problem of the structure of the specs, in place of a spec."""

    text: str


_Pair: TypeAlias = tuple[tuple[Any, ...], Any, Any, str]
"""The path of a leaf, the leaf or `_NO_LEAF`, its given spec or a problem, and the part of a rule that decided."""


def match_specs(tree: Any, specs: Any, mesh: MeshLike) -> tuple[list[MatchedSpec], list[str]]:
    """Returns each array of a tree with its spec, and all problems: of the structure, and of single specs.

    The specs are a prefix of the tree, or a rule that gives them, whose errors are raised.
    """
    if isinstance(specs, AxisMapping):
        raise TypeError(
            "an `AxisMapping` is a mapping from names of axes and not a tree of specs; "
            "`axonym.explain(tree, mapping, mesh)` explains what it does to each array"
        )
    leaves = jax.tree.leaves(tree)
    if leaves and all(isinstance(leaf, P) for leaf in leaves):
        raise strip_library_frames(
            TypeError("The first argument has `PartitionSpec`s in place of arrays; the specs are the second one.")
        )
    pairs = _list_rule_specs(specs, tree, mesh) if isinstance(specs, ShardingRule) else _pair_specs(tree, specs)
    return _check_pairs(tree, pairs, mesh)


def _list_rule_specs(rule: ShardingRule, tree: Any, mesh: MeshLike) -> Iterator[_Pair]:
    """Yields each leaf with the spec that a rule gives it."""
    leaves = RuleTree.from_tree(tree).leaves
    for (path, leaf, _), decision in zip(leaves, explain_decisions(rule, tree, mesh), strict=True):
        if decision.error is not None:
            raise decision.error
        yield path, leaf, decision.spec, decision.by.replace("`: ", "`, ", 1)


def _check_pairs(tree: Any, pairs: Iterable[_Pair], mesh: MeshLike) -> tuple[list[MatchedSpec], list[str]]:
    found: list[MatchedSpec] = []
    problems: list[str] = []
    described = iter(describe_leaves(tree))
    for path, leaf, given, source in pairs:
        where = f"{keystr(path)}: " if path else ""
        if leaf is _NO_LEAF:
            problems.append(f"{where}{given.text}")
            continue
        arrays = jax.tree.leaves(leaf.array) if isinstance(leaf, NamedArray) else [leaf]
        places = [next(described) for _ in arrays]
        if len(arrays) != 1 or (shape := get_array_shape(arrays[0])) is None:
            continue
        if isinstance(given, _Problem):  # reported already, once for this part of the tree
            found.append(MatchedSpec(arrays[0], places[0], None, (given.text,)))
            continue
        spec = _read_spec(given, mesh)
        if isinstance(spec, _Problem):
            spec, wrong = None, (spec.text,)
        else:
            wrong = find_spec_problems(shape, places[0].names_of(shape), spec, mesh)
        found.append(MatchedSpec(arrays[0], places[0], spec, wrong, source))
        problems += [where + problem for problem in wrong]
    return found, problems


def _pair_specs(tree: Any, specs: Any) -> Iterator[_Pair]:
    """Yields each leaf with its spec or a problem, and problems of places without a leaf."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_takes_one_spec)
    try:
        given, structure = jax.tree.flatten(specs, is_leaf=_takes_one_spec)
        is_same = structure == treedef
    except Exception as refused:  # a tree that cannot be flattened, such as a dict with keys that cannot be sorted
        problem = _Problem(f"JAX cannot flatten the tree of specs: {get_first_line(refused)}")
        yield from _report_part((), tree, problem)
        return
    if is_same:
        pairs = zip(leaves, given, strict=True)
        yield from ((path, leaf, spec, "") for (path, leaf), spec in pairs if leaf is not None)
    else:
        yield from _pair_node((), tree, specs)


def _takes_one_spec(x: Any) -> bool:
    """Returns whether a node of a tree has one spec for everything in it."""
    return x is None or isinstance(x, NamedArray)


def _report_part(path: tuple[Any, ...], node: Any, problem: _Problem) -> Iterator[_Pair]:
    """Yields a problem of a part of a tree, and each leaf in it."""
    yield path, _NO_LEAF, problem, ""
    yield from _pair_leaves(path, node, problem)


def _pair_leaves(path: tuple[Any, ...], node: Any, spec: Any) -> Iterator[_Pair]:
    """Yields each leaf of a part of a tree with the same spec or problem."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(node, is_leaf=_takes_one_spec)[0]:
        if leaf is not None:
            yield (*path, *keys), leaf, spec, ""


def _pair_node(path: tuple[Any, ...], node: Any, specs: Any) -> Iterator[_Pair]:
    """Yields the same for a part of a tree whose specs are not of the same structure."""
    if node is None:
        if isinstance(specs, dict | list | tuple) and specs:
            yield path, _NO_LEAF, _Problem("there are specs and no array; remove them"), ""
    elif _takes_one_spec(node) or _is_leaf(node):
        yield path, node, specs, ""
    elif _is_leaf(specs) or isinstance(specs, NamedArray) or _is_unwrapped_spec(specs):
        problem = _check_kind(specs)
        yield from _pair_leaves(path, node, specs) if problem is None else _report_part(path, node, problem)
    else:
        yield from _pair_children(path, node, specs)


def _is_leaf(x: Any) -> bool:
    return x is None or jax.tree_util.all_leaves([x])


def _pair_children(path: tuple[Any, ...], node: Any, specs: Any) -> Iterator[_Pair]:
    """Yields the same for each child of a node."""
    inside, given = _get_children(node), _get_children(specs)
    kind, text = type(specs).__name__, ""
    if type(node) is not type(specs):
        text = f"the specs have a {kind} where the tree has a {type(node).__name__}"
    elif inside.keys() == given.keys() and _get_structure(node) != _get_structure(specs):
        text = f"the specs have a `{kind}` whose static fields differ from the tree's"
    if text:
        problem = _Problem(f"{text}; use the same, or one spec for all arrays in it")
        yield from _report_part(path, node, problem)
        return
    for key, child in inside.items():
        if key in given:
            yield from _pair_node((*path, key), child, given[key])
        elif any(get_array_shape(leaf) is not None for leaf in jax.tree.leaves(child, is_leaf=_takes_one_spec)):
            problem = _Problem("no spec is given for it; add one, or None to replicate it")
            yield from _report_part((*path, key), child, problem)
        else:
            yield from _pair_leaves((*path, key), child, None)
    known = [keystr((key,), simple=True) for key in inside]
    for key in given:
        if key not in inside:
            near = suggest_name(keystr((key,), simple=True), known)
            yield (*path, key), _NO_LEAF, _Problem(f"a spec is given for it, and the tree has no such part{near}"), ""


def _get_children(node: Any) -> dict[Any, Any]:
    """Returns the children of a node by their keys."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return {keys[0]: child for keys, child in pairs if keys}


def _get_structure(node: Any) -> Any:
    """Returns the structure of a node without its children: its type, keys and static fields."""
    return jax.tree.structure(node, is_leaf=lambda x: x is not node)


def _read_spec(given: Any, mesh: MeshLike) -> P | _Problem:
    """Returns the spec that is given for an array in any form, or the problem if it is not clear."""
    given = given.array if isinstance(given, NamedArray) else given
    if isinstance(given, NamedSharding) and not is_same_mesh(given.mesh, mesh):
        one, other = format_mesh(given.mesh), format_mesh(mesh)
        difference = f"not on {other}" if one != other else "of other devices or types of mesh axes"
        return _Problem(f"its sharding is on the mesh {one}, {difference}; {_REMEDY}")
    if isinstance(given, NamedSharding):
        return given.spec
    return _check_kind(given) or (P() if given is None else given)


def _check_kind(given: Any) -> _Problem | None:
    """Returns the problem of an object that is given as a spec, None if it is a spec."""
    given = given.array if isinstance(given, NamedArray) else given
    if given is None or isinstance(given, P | NamedSharding):
        return None
    kind = f"`{type(given).__name__}`"
    if isinstance(given, Sharding):
        return _Problem(f"{kind} is not on a mesh; {_REMEDY}")
    if isinstance(given, str):
        return _Problem(f"a string is not a spec; write P({given!r})")
    if _is_unwrapped_spec(given):
        return _Problem(f"{kind} is not a spec; write P({', '.join(map(repr, given))})")
    return _Problem(f"{kind} is not a spec; give a `PartitionSpec`, or None to replicate it")


def _is_unwrapped_spec(x: Any) -> bool:
    """Returns whether a tuple or list has the entries of a spec, and is not a tree of specs."""
    names = isinstance(x, tuple | list) and all(each is None or isinstance(each, str) for each in x)
    return names and any(isinstance(each, str) for each in x)
