"""Specs beside the arrays that they are for, and everything that is wrong with them, said in full and never raised."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec as P, Sharding
from jax.tree_util import keystr

from ..named._array import NamedArray
from ..named._axis import suggest_name
from ..partitioning.rules._rule_tree import RuleTree
from ..partitioning.rules._sharding_rule import Decision as RuleDecision
from ..partitioning.sharding._partition_specs import get_sharded_axes, is_same_mesh
from ..partitioning.specs._active_mesh import MeshLike, format_mesh
from ..partitioning.specs._leaves import Leaf, describe_leaves, get_array_shape
from ..partitioning.specs._spec_problems import find_spec_problems, get_first_line


class Stated(NamedTuple):
    """An array, what is known of it, its spec or None, what is wrong with that, and what part of a rule gave it.

    Where something is wrong with the structure of the specs, no spec is known.
    """

    array: Any
    about: Leaf
    spec: P | None
    problems: tuple[str, ...] = ()
    by: str = ""

    @property
    def path(self) -> str:
        """Returns its key path as JAX writes it."""
        return keystr(self.about.path)


def stated_specs(tree: Any, specs: Any, mesh: MeshLike) -> tuple[list[Stated], list[str]]:
    """Returns each array of a tree with its spec, and all problems: of the structure, and of single specs.

    Args:
        tree: Any tree of arrays.
        specs: The specs, a prefix of the tree: one may stand for all arrays below it. None is undivided.
        mesh: The mesh that they are for.
    """
    found, problems = [], []
    described = iter(describe_leaves(tree))
    for path, leaf, spec in _paired(tree, specs):
        if leaf is _NOTHING:
            problems.append(_at(path, spec.text))
            continue
        one, wrong = _stated(leaf, spec, mesh, described)
        found += one
        problems += [_at(path, each) for each in wrong]
    return found, problems


def decided_specs(tree: Any, decisions: Sequence[RuleDecision], mesh: MeshLike) -> tuple[list[Stated], list[str]]:
    """Returns the same for what a rule decides for each leaf of a tree.

    Raises:
        Exception: What the rule raises in place of a spec.
    """
    found, problems = [], []
    described = iter(describe_leaves(tree))
    for (path, leaf, _), decision in zip(RuleTree.from_tree(tree).leaves, decisions, strict=True):
        if decision.error is not None:
            raise decision.error
        one, wrong = _stated(leaf, decision.spec, mesh, described)
        found += [each._replace(by=decision.by.replace("`: ", "`, ", 1)) for each in one]
        problems += [_at(path, each) for each in wrong]
    return found, problems


def _stated(leaf: Any, spec: Any, mesh: MeshLike, described: Iterator[Leaf]) -> tuple[list[Stated], tuple[str, ...]]:
    """Returns a leaf with its spec, nothing if it is no array, and what is wrong."""
    held = jax.tree.leaves(leaf.array) if type(leaf) is NamedArray else [leaf]
    about = [next(described) for _ in held]
    if len(held) != 1 or (shape := get_array_shape(held[0])) is None:
        return [], ()
    names = about[0].names_of(shape)
    if isinstance(spec, _Problem):  # said once already, for all that is in the part
        return [Stated(held[0], about[0], None, (spec.text,))], ()
    spec, wrong = _spec_of(spec, mesh)
    if spec is not None:
        wrong = find_spec_problems(shape, names, spec, mesh)
    return [Stated(held[0], about[0], spec, wrong)], wrong


def _at(path: tuple[Any, ...], problem: str) -> str:
    return f"{keystr(path)}: {problem}" if path else problem


class _Problem(NamedTuple):
    """What is wrong with the structure of the specs at a place."""

    text: str


_NOTHING = object()


def _paired(tree: Any, specs: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yields each leaf with its path and its spec or a problem, and problems of places where there is no leaf."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_place)
    try:
        given, structure = jax.tree.flatten(specs, is_leaf=_is_place)
        alike = structure == treedef
    except Exception as refused:  # a tree that cannot be flattened, such as a dict with keys that cannot be sorted
        yield from _all((), tree, _Problem(f"the specs are no tree that JAX takes: {get_first_line(refused)}"))
        return
    if alike:
        pairs = zip(leaves, given, strict=True)
        yield from ((path, leaf, spec) for (path, leaf), spec in pairs if leaf is not None)
    else:
        yield from _walked((), tree, specs)


def _all(path: tuple[Any, ...], node: Any, problem: _Problem) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yields a problem of a whole part of a tree, and each leaf in it."""
    yield path, _NOTHING, problem
    yield from _below(path, node, problem)


def _below(path: tuple[Any, ...], node: Any, spec: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yields each leaf of a part of a tree with one and the same spec or problem."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(node, is_leaf=_is_place)[0]:
        if leaf is not None:
            yield (*path, *keys), leaf, spec


def _is_place(x: Any) -> bool:
    """Tells whether a node of a tree is one that a single spec belongs to, whatever is in it."""
    return x is None or type(x) is NamedArray


def _walked(path: tuple[Any, ...], node: Any, specs: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yields the same for a part of a tree whose specs are not of the same structure."""
    if node is None:
        if isinstance(specs, dict | list | tuple) and specs:
            yield path, _NOTHING, _Problem("there are specs and no array; remove them")
        return
    if _is_place(node) or _is_leaf(node):
        yield path, node, specs
        return
    if _is_leaf(specs) or type(specs) is NamedArray or _is_written_out(specs):
        wrong = _kind(specs)
        yield from _below(path, node, specs) if wrong is None else _all(path, node, _Problem(wrong))
        return
    yield from _children(path, node, specs)


def _is_leaf(x: Any) -> bool:
    return x is None or jax.tree_util.all_leaves([x])


def _children(path: tuple[Any, ...], node: Any, specs: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yields the same for each part of a node."""
    if type(node) is not type(specs):
        text = f"the specs have a {type(specs).__name__} where the tree has a {type(node).__name__}; use the same"
        yield from _all(path, node, _Problem(f"{text}, or one spec for all that is in it"))
        return
    inside, given = _parts(node), _parts(specs)
    if inside.keys() == given.keys() and _outside(node) != _outside(specs):
        text = f"the specs have a `{type(specs).__name__}` whose static parts are others than the tree's; use the same"
        yield from _all(path, node, _Problem(f"{text}, or one spec for all that is in it"))
        return
    for key, child in inside.items():
        if key in given:
            yield from _walked((*path, key), child, given[key])
        elif any(get_array_shape(leaf) is not None for leaf in jax.tree.leaves(child, is_leaf=_is_place)):
            problem = _Problem("no spec is given for it; add one, or None to leave it undivided")
            yield from _all((*path, key), child, problem)
        else:
            yield from _below((*path, key), child, None)
    for key in given:
        if key not in inside:
            near = suggest_name(_key_name(key), [_key_name(each) for each in inside])
            yield (*path, key), _NOTHING, _Problem(f"a spec is given for it, and the tree has no such part{near}")


def _parts(node: Any) -> dict[Any, Any]:
    """Returns the parts of a node by their keys."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return {keys[0]: child for keys, child in pairs if keys}


def _outside(node: Any) -> Any:
    """Returns the structure of a node without what is in its parts: its type, keys and static parts."""
    return jax.tree.structure(node, is_leaf=lambda x: x is not node)


def _key_name(key: Any) -> str:
    return keystr((key,), simple=True)


def _spec_of(given: Any, mesh: MeshLike) -> tuple[P | None, tuple[str, ...]]:
    """Returns the spec that is meant by what is given for an array; none, and what is wrong, if it is not clear."""
    if type(given) is NamedArray:
        given = given.array
    if given is None:
        return P(), ()
    if isinstance(given, P):
        return given, ()
    if isinstance(given, NamedSharding):
        if is_same_mesh(given.mesh, mesh):
            return given.spec, ()
        one, other = format_mesh(given.mesh), format_mesh(mesh)
        differs = f"not on {other}" if one != other else "of other devices or types of mesh axes"
        return None, (f"its sharding is on the mesh {one}, {differs}; {_REMEDY}",)
    return None, (_kind(given) or "",)


def _kind(given: Any) -> str | None:
    """Returns what is wrong with the kind of what is given in place of a spec, None if nothing is."""
    given = given.array if type(given) is NamedArray else given
    if given is None or isinstance(given, P | NamedSharding):
        return None
    kind = f"`{type(given).__name__}`"
    if isinstance(given, Sharding):
        return f"{kind} is on no mesh; {_REMEDY}"
    if isinstance(given, str):
        return f"a string is no spec; write P({given!r})"
    if _is_written_out(given):
        return f"{kind} is no spec; write P({', '.join(map(repr, given))})"
    return f"{kind} is no spec; give a `PartitionSpec`, or None to leave it undivided"


def _is_written_out(x: Any) -> bool:
    """Tells whether something is the entries of a spec in a tuple or a list, and not a tree of specs."""
    names = isinstance(x, tuple | list) and all(each is None or isinstance(each, str) for each in x)
    return names and any(isinstance(each, str) for each in x)


_REMEDY = "give its `PartitionSpec`"


def divided(spec: P | None) -> tuple[str, ...]:
    """Returns the mesh axes that a spec divides an array over, in order."""
    return () if spec is None else tuple(axis for entry in spec.partitions for axis in get_sharded_axes(entry))
