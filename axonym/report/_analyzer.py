"""`ShardingAnalyzer`: whether specs fit a tree of arrays, what they cost on each device, and what changed."""

from typing import Any

from ..named._axis import format_value
from ..partitioning.mapping._axis_mapping import AxisMapping
from ..partitioning.rules._rule_options import check_mesh
from ..partitioning.rules._sharding_rule import ShardingRule, explain_decisions
from ..partitioning.specs._active_mesh import MeshLike, get_active_mesh, resolve_mesh
from ..partitioning.specs._bytes_per_device import count_array_bytes
from ._advice import parts_of
from ._build import by_own_shardings, by_specs
from ._compare import ReportComparison, compared
from ._problems import Stated, decided_specs, stated_specs
from ._report import ShardingReport
from ._table import some_problems


class ShardingAnalyzer:
    """Says whether specs fit the arrays of a tree, and what they cost on each device; nothing is moved or compiled.

    Specs are a tree of `PartitionSpec`s, or a prefix of the tree of arrays, as `jax.jit` takes it: one spec may stand
    for all arrays below it. In place of a spec there may be None, which divides nothing, and a `NamedSharding` on the
    same mesh. A named array has one spec in its place. Leaves that are no arrays need none. Arrays may be traced, and
    `jax.ShapeDtypeStruct`s.

    Args:
        mesh: The mesh, with devices or abstract; if None, the one that is in force when something is asked.

    Raises:
        TypeError: If the mesh is none.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> params = {"weight": jax.ShapeDtypeStruct((8, 6), "float32"), "bias": jax.ShapeDtypeStruct((6,), "float32")}
        >>> analyzer.validate_partition_specs(params, {"weight": P("data", "model"), "bias": P("data")})
        ["['bias']: dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size that fits \
is 8"]
        >>> analyzer.estimate_memory_usage(params, {"weight": P("data", "model"), "bias": P("model")})
        {'total_size': 216, 'size_per_device': 36}
    """

    def __init__(self, mesh: MeshLike | None = None) -> None:
        """Keeps the mesh."""
        self._mesh = check_mesh(mesh)

    @property
    def mesh(self) -> MeshLike | None:
        """The mesh given, or else the one in force; None if there is neither."""
        return get_active_mesh() if self._mesh is None else self._mesh

    def __repr__(self) -> str:
        """Shows the mesh given."""
        return "ShardingAnalyzer()" if self._mesh is None else f"ShardingAnalyzer({self._mesh!r})"

    def validate_partition_specs(self, pytree: Any, partition_specs: Any) -> list[str]:
        """Returns everything that is wrong with specs for a tree, each with the key path of its array.

        These are: more entries than dimensions, mesh axes that the mesh does not have or that are Manual here, a mesh
        axis that is used twice, sizes that are not divisible, entries of a wrong kind, specs on another mesh, things
        that are no specs, and specs that are missing or for parts that the tree does not have.

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
        return _stated(pytree, partition_specs, mesh)[1]

    def estimate_memory_usage(self, pytree: Any, partition_specs: Any) -> dict[str, int]:
        """Returns the bytes of a tree, and those that each device holds once the specs divide it.

        The numbers are exact: they are what the arrays' data takes, without what a device rounds up or keeps beside.
        Elements of less than a byte count by their bits, as accelerators store them, where `jax.Array.nbytes` counts a
        byte for each; random keys count by their data. A dimension that is left to the compiler counts whole.

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
        stated, problems = _stated(pytree, partition_specs, mesh)
        if problems:
            said = some_problems(problems, "`validate_partition_specs`")
            count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
            raise ValueError(f"the memory cannot be told for specs with {count}:\n" + "\n".join(said))
        arrays = [(one.array.dtype, tuple(one.array.shape), one.spec) for one in stated]
        return {
            "total_size": sum(count_array_bytes(dtype, shape) for dtype, shape, _ in arrays),
            "size_per_device": sum(
                count_array_bytes(dtype, parts_of(shape, spec, mesh)) for dtype, shape, spec in arrays
            ),
        }

    def sharding_report(self, pytree: Any, partition_specs: Any = None, *, depth: int | None = None) -> ShardingReport:
        """Returns what each array of a tree costs on each device, why, and what would change that.

        Args:
            pytree: Any tree of arrays.
            partition_specs: Their specs, or a rule that gives them; if None, the arrays' own shardings.
            depth: How many keys of the paths the groups go by; if None, as many as make 3 to 10 groups, if any do.

        Returns:
            The report: print it, look at its attributes, or save it as a page or a lock.

        Raises:
            ValueError: If there are specs and no mesh, or the depth is negative.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> from jax.sharding import PartitionSpec as P
            >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
            >>> print(analyzer.sharding_report({"w": jax.ShapeDtypeStruct((8, 6), "float32")}, P("data")))
            mesh (data: 4, model: 2), 8 devices; by the specs given; 0.0% of the bytes undivided; imbalance 1.00
            <BLANKLINE>
            array                                 bytes  per device  copies
              axis  size  mesh axes  why
            ---------------------------------------------------------------
            ['w']  float32, plain                 192 B        48 B   192 B
              -        8  data (4)   the spec says 'data'
              -        6  -          the spec leaves it whole; 'model' could divide it
            ---------------------------------------------------------------
            1 array, 25.0% on the fullest device  192 B        48 B   192 B
            <BLANKLINE>
            Most in copies: ['w'] 192 B
            <BLANKLINE>
            Mesh axes over which no array is divided:
              'model': nothing asks for it; it could divide 1 of 1 arrays
        """
        if depth is not None and depth < 0:
            raise ValueError(f"`depth` is the number of keys that the groups go by; it was {depth}.")
        if partition_specs is None:
            return by_own_shardings(pytree, self.mesh, depth)
        mesh = resolve_mesh(self._mesh, "`sharding_report` with specs")
        rule = type(partition_specs).__name__ if isinstance(partition_specs, ShardingRule) else None
        return by_specs(*_stated(pytree, partition_specs, mesh), mesh, depth, rule)

    @staticmethod
    def compare(report_a: ShardingReport, report_b: ShardingReport) -> ReportComparison:
        """Returns what changed from one report to another: arrays that moved, came and went, and the totals.

        Args:
            report_a: The report from before.
            report_b: The report from after.

        Raises:
            TypeError: If one is no report.

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
        return compared(report_a, report_b)


def _stated(tree: Any, given: Any, mesh: MeshLike) -> tuple[list[Stated], list[str]]:
    """Returns the arrays of a tree with the specs given or those that a rule gives on this mesh, and all problems.

    Raises:
        TypeError: If a mapping is given.
        ValueError: If the rule raises it.
    """
    if isinstance(given, AxisMapping):
        raise TypeError(
            "an `AxisMapping` says where names of axes go and is no tree of specs; "
            "`axonym.explain(tree, mapping, mesh)` says what it does to each array"
        )
    if isinstance(given, ShardingRule):
        return decided_specs(tree, explain_decisions(given, tree, mesh), mesh)
    return stated_specs(tree, given, mesh)
