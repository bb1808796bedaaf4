"""`ShardingAnalyzer`: whether specs fit a tree of arrays, what they cost on each device, and what changed."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.sharding import NamedSharding, PartitionSpec as P, Sharding
from jax.tree_util import keystr

from .._ground.errors import make_error
from .._ground.formats import format_count, format_value, shorten_list, suggest_name
from ..named._array import NamedArray
from ..named._axis_layout import MeshLike
from ..partitioning._active_mesh import check_mesh, format_mesh, get_active_mesh, resolve_mesh
from ..partitioning._leaves import count_array_bytes, describe_leaves, get_array_shape
from ..partitioning._mapping import AxisMapping
from ..partitioning._resolve_spec import find_spec_problems, get_first_line
from ..partitioning._shard import is_same_mesh
from ..rules._sharding_rule import RuleTree, ShardingRule, explain_decisions
from ._explain import MatchedSpec, get_shard_shape
from ._format import check_count
from ._sharding_report import ReportComparison, ShardingReport, compare_reports, report_own_shardings, report_specs


_Pair: TypeAlias = tuple[tuple[Any, ...], Any, Any, str]
"""The path of a leaf, the leaf or `_NO_LEAF`, its given spec or a problem, and the part of a rule that decided."""

_REMEDY = "give its `PartitionSpec`"
_NO_LEAF = object()


class _Problem(NamedTuple):
    """A problem of the structure of the specs, in place of a spec."""

    text: str


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
        raise make_error(
            TypeError, "The first argument has `PartitionSpec`s in place of arrays; the specs are the second one."
        )
    pairs = _list_rule_specs(specs, tree, mesh) if isinstance(specs, ShardingRule) else _pair_specs(tree, specs)
    matched: list[MatchedSpec] = []
    problems: list[str] = []
    described = iter(describe_leaves(tree))
    for path, leaf, entry, source in pairs:
        location = f"{keystr(path)}: " if path else ""
        if leaf is _NO_LEAF:
            problems.append(f"{location}{entry.text}")
            continue
        arrays = jax.tree.leaves(leaf.array) if isinstance(leaf, NamedArray) else [leaf]
        # Also of leaves that are no arrays, since all are described; a named array may be empty in a filtered tree.
        places = [next(described) for _ in arrays]
        if len(arrays) != 1 or (shape := get_array_shape(arrays[0])) is None:
            continue
        if isinstance(entry, _Problem):  # reported already, once for this part of the tree
            matched.append(MatchedSpec(arrays[0], places[0], None, (entry.text,)))
            continue
        spec = _read_spec(entry, mesh)
        if isinstance(spec, _Problem):
            spec, spec_problems = None, (spec.text,)
        else:
            spec_problems = find_spec_problems(shape, places[0].names_of(shape), spec, mesh)
        matched.append(MatchedSpec(arrays[0], places[0], spec, spec_problems, source))
        problems += [location + problem for problem in spec_problems]
    return matched, problems


def _list_rule_specs(rule: ShardingRule, tree: Any, mesh: MeshLike) -> Iterator[_Pair]:
    """Yields each leaf with the spec that a rule gives it."""
    leaves = RuleTree.from_tree(tree).leaves
    for (path, leaf, _), decision in zip(leaves, explain_decisions(rule, tree, mesh), strict=True):
        if decision.error is not None:
            raise decision.error
        yield path, leaf, decision.spec, decision.by.replace("`: ", "`, ", 1)


def _pair_specs(tree: Any, specs: Any) -> Iterator[_Pair]:
    """Yields each leaf with its spec or a problem, and problems of places without a leaf."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_takes_one_spec)
    try:
        entries, structure = jax.tree.flatten(specs, is_leaf=_takes_one_spec)
        is_same = structure == treedef
    except Exception as refused:  # a tree that cannot be flattened, such as a dict with keys that cannot be sorted
        problem = _Problem(f"JAX cannot flatten the tree of specs: {get_first_line(refused)}")
        yield from _report_part((), tree, problem)
        return
    if is_same:
        pairs = zip(leaves, entries, strict=True)
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
    """Yields the pairs of a part of a tree whose specs have another structure."""
    if node is None:
        if isinstance(specs, dict | list | tuple) and specs:
            yield path, _NO_LEAF, _Problem("there are specs and no array; remove them"), ""
    elif _takes_one_spec(node) or _is_leaf(node):
        yield path, node, specs, ""
    # One entry for everything below: a spec, or what was meant as one, of which there is a problem.
    elif _is_leaf(specs) or isinstance(specs, NamedArray) or _is_unwrapped_spec(specs):
        problem = _check_kind(specs)
        yield from _pair_leaves(path, node, specs) if problem is None else _report_part(path, node, problem)
    else:
        yield from _pair_children(path, node, specs)


def _is_leaf(x: Any) -> bool:
    return x is None or jax.tree_util.all_leaves([x])


def _pair_children(path: tuple[Any, ...], node: Any, specs: Any) -> Iterator[_Pair]:
    """Yields the pairs of each child of a node."""
    children, entries = _get_children(node), _get_children(specs)
    kind, text = type(specs).__name__, ""
    if type(node) is not type(specs):
        text = f"the specs have a {kind} where the tree has a {type(node).__name__}"
    elif children.keys() == entries.keys() and _get_structure(node) != _get_structure(specs):
        text = f"the specs have a `{kind}` whose static fields differ from the tree's"
    if text:
        problem = _Problem(f"{text}; use the same, or one spec for all arrays in it")
        yield from _report_part(path, node, problem)
        return
    for key, child in children.items():
        if key in entries:
            yield from _pair_node((*path, key), child, entries[key])
        elif any(get_array_shape(leaf) is not None for leaf in jax.tree.leaves(child, is_leaf=_takes_one_spec)):
            problem = _Problem("no spec is given for it; add one, or None to replicate it")
            yield from _report_part((*path, key), child, problem)
        else:
            yield from _pair_leaves((*path, key), child, None)
    names = [keystr((key,), simple=True) for key in children]
    for key in entries:
        if key not in children:
            suggestion = suggest_name(keystr((key,), simple=True), names)
            problem = _Problem(f"a spec is given for it, and the tree has no such part{suggestion}")
            yield (*path, key), _NO_LEAF, problem, ""


def _get_children(node: Any) -> dict[Any, Any]:
    """Returns the children of a node by their keys."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return {keys[0]: child for keys, child in pairs if keys}


def _get_structure(node: Any) -> Any:
    """Returns the structure of a node without its children: its type, keys and static fields."""
    return jax.tree.structure(node, is_leaf=lambda x: x is not node)


def _read_spec(entry: Any, mesh: MeshLike) -> P | _Problem:
    """Returns the spec of an entry of the tree of specs, or the problem of that entry."""
    entry = entry.array if isinstance(entry, NamedArray) else entry
    if not isinstance(entry, NamedSharding):
        return _check_kind(entry) or (P() if entry is None else entry)
    if is_same_mesh(entry.mesh, mesh):
        return entry.spec
    spec_mesh, target_mesh = format_mesh(entry.mesh), format_mesh(mesh)
    difference = f"not on {target_mesh}" if spec_mesh != target_mesh else "of other devices or types of mesh axes"
    return _Problem(f"its sharding is on the mesh {spec_mesh}, {difference}; {_REMEDY}")


def _check_kind(entry: Any) -> _Problem | None:
    """Returns the problem of an entry of the tree of specs, None if it is a spec."""
    entry = entry.array if isinstance(entry, NamedArray) else entry
    if entry is None or isinstance(entry, P | NamedSharding):
        return None
    kind = f"`{type(entry).__name__}`"
    if isinstance(entry, Sharding):
        return _Problem(f"{kind} is not on a mesh; {_REMEDY}")
    if isinstance(entry, str):
        return _Problem(f"a string is not a spec; write P({entry!r})")
    if _is_unwrapped_spec(entry):
        return _Problem(f"{kind} is not a spec; write P({', '.join(map(repr, entry))})")
    return _Problem(f"{kind} is not a spec; give a `PartitionSpec`, or None to replicate it")


def _is_unwrapped_spec(x: Any) -> bool:
    """Returns whether a tuple or list has the entries of a spec, and is not a tree of specs."""
    names = isinstance(x, tuple | list) and all(entry is None or isinstance(entry, str) for entry in x)
    return names and any(isinstance(entry, str) for entry in x)


class ShardingAnalyzer:
    """Checks specs for the arrays of a tree, and reports what they cost on each device; nothing is moved or compiled.

    Specs are a tree of `PartitionSpec`s, or a prefix of the tree of arrays, as `jax.jit` takes it: one spec may stand
    for all arrays below it. In place of a spec, None replicates, and a `NamedSharding` on the same mesh stands for its
    spec. A named array has one spec in its place. Leaves that are not arrays need none. Arrays may be traced, and
    `jax.ShapeDtypeStruct`s.

    Args:
        mesh: The mesh, with devices or abstract; if None, the mesh that is active when a method is called.

    Raises:
        TypeError: If the mesh is not a mesh.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> params = {"weight": jax.ShapeDtypeStruct((8, 6), "float32"), "bias": jax.ShapeDtypeStruct((6,), "float32")}
        >>> analyzer.validate_partition_specs(params, {"weight": P("data", "model"), "bias": P("data")})
        ["['bias']: dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size that \
fits is 8"]
        >>> analyzer.estimate_memory_usage(params, {"weight": P("data", "model"), "bias": P("model")})
        {'total_size': 216, 'size_per_device': 36}
    """

    def __init__(self, mesh: MeshLike | None = None) -> None:
        self._mesh = check_mesh(mesh)

    @property
    def mesh(self) -> MeshLike | None:
        """The mesh given, or else the active mesh; None if there is neither."""
        return get_active_mesh() if self._mesh is None else self._mesh

    def __repr__(self) -> str:
        return "ShardingAnalyzer()" if self._mesh is None else f"ShardingAnalyzer({self._mesh!r})"

    def validate_partition_specs(self, pytree: Any, partition_specs: Any) -> list[str]:
        """Returns all problems of specs for a tree, each with the key path of its array.

        These are: more entries than dimensions, mesh axes that the mesh does not have or that are Manual here, a mesh
        axis that is used twice, sizes that are not divisible, entries of a wrong type, specs on another mesh, objects
        that are not specs, and specs that are missing or for parts that the tree does not have.

        Args:
            pytree: Any tree of arrays.
            partition_specs: Their specs, or a rule that gives them.

        Returns:
            The problems in the order of the tree; none if JAX takes all specs.

        Raises:
            ValueError: If there is no mesh.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> from jax.sharding import PartitionSpec as P
            >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
            >>> analyzer.validate_partition_specs([jax.numpy.ones((8, 4))], [P("data", "modle")])
            ["[0]: dimension 1: no mesh axis 'modle' in (data: 4, model: 2); did you mean 'model'?"]
        """
        mesh = resolve_mesh(self._mesh, "`validate_partition_specs`")
        return match_specs(pytree, partition_specs, mesh)[1]

    def estimate_memory_usage(self, pytree: Any, partition_specs: Any) -> dict[str, int]:
        """Returns the bytes of a tree, and the bytes on each device if it is sharded by the specs.

        The numbers are exact for the data of the arrays; what a device adds by rounding up is not counted.
        Elements of less than a byte count by their bits, as accelerators store them, where `jax.Array.nbytes` counts a
        byte for each; random keys count by their data. A dimension left to the compiler counts at full size.

        Args:
            pytree: Any tree of arrays.
            partition_specs: Their specs, or a rule that gives them.

        Returns:
            `"total_size"`, the bytes of one copy of all arrays, and `"size_per_device"`, the bytes on each device.

        Raises:
            ValueError: If there is no mesh, or a spec is not valid; the message lists all problems.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> from jax.sharding import PartitionSpec as P
            >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
            >>> analyzer.estimate_memory_usage(jax.numpy.ones((8, 4)), P(("data", "model")))
            {'total_size': 128, 'size_per_device': 16}
        """
        mesh = resolve_mesh(self._mesh, "`estimate_memory_usage`")
        matched, problems = match_specs(pytree, partition_specs, mesh)
        if problems:
            lines = shorten_list(problems, source="`validate_partition_specs`")
            count = format_count(len(problems), "problem")
            raise ValueError("\n".join([f"the memory usage is unknown for specs with {count}:", *lines]))
        total = per_device = 0
        for array, _, spec, *_ in matched:
            shape = tuple(array.shape)
            total += count_array_bytes(array.dtype, shape)
            per_device += count_array_bytes(array.dtype, get_shard_shape(shape, spec, mesh))
        return {"total_size": total, "size_per_device": per_device}

    def sharding_report(self, pytree: Any, partition_specs: Any = None, *, depth: int | None = None) -> ShardingReport:
        """Returns what each array of a tree costs on each device, why, and what would change that.

        Args:
            pytree: Any tree of arrays.
            partition_specs: Their specs, or a rule that gives them; if None, the arrays' own shardings.
            depth: The number of keys of the paths that make a group; if None, as many as make 3 to 10 groups.

        Returns:
            The report: print it, use its attributes, or save it as a page or a lock.

        Raises:
            ValueError: If there are specs and no mesh, or the depth is negative.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> from jax.sharding import PartitionSpec as P
            >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
            >>> print(analyzer.sharding_report({"w": jax.ShapeDtypeStruct((8, 6), "float32")}, P("data")))
            mesh (data: 4, model: 2), 8 devices; by the given specs; 0.0% of the bytes unsharded; imbalance 1.00
            <BLANKLINE>
            array                                 bytes  per device  copies
              axis  size  mesh axes  why
            ---------------------------------------------------------------
            ['w']  float32, plain                 192 B        48 B   192 B
              -        8  data (4)   the spec: 'data'
              -        6  -          the spec: replicated; 'model' could shard it
            ---------------------------------------------------------------
            1 array, 25.0% on the fullest device  192 B        48 B   192 B
            <BLANKLINE>
            Most in copies: ['w'] 192 B
            <BLANKLINE>
            Mesh axes that no array is sharded over:
              'model': unused; it could shard 1 of 1 arrays
        """
        if depth is not None:
            check_count("depth", depth, "the number of keys of a path that make a group")
        if partition_specs is None:
            return report_own_shardings(pytree, self.mesh, depth)
        mesh = resolve_mesh(self._mesh, "`sharding_report` with specs")
        rule = type(partition_specs).__name__ if isinstance(partition_specs, ShardingRule) else None
        return report_specs(*match_specs(pytree, partition_specs, mesh), mesh, depth, rule)

    @staticmethod
    def compare(report_a: ShardingReport, report_b: ShardingReport) -> ReportComparison:
        """Returns what changed from one report to another: arrays that moved, were added or removed, and the totals.

        Args:
            report_a: The report before the change.
            report_b: The report after it.

        Raises:
            TypeError: If one is not a report.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> from jax.sharding import PartitionSpec as P
            >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
            >>> weight = jax.ShapeDtypeStruct((8, 4), "float32")
            >>> reports = [analyzer.sharding_report(weight, spec) for spec in (P("data"), P("data", "model"))]
            >>> [(leaf.after.spec, leaf.after.bytes_per_device) for leaf in analyzer.compare(*reports).moved]
            [(P('data', 'model'), 16)]
        """
        for report in (report_a, report_b):
            if not isinstance(report, ShardingReport):
                raise TypeError(f"`compare` takes two `ShardingReport`s, not {format_value(report)}.")
        return compare_reports(report_a, report_b)
