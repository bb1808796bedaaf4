"""`ShardingAnalyzer`: whether specs fit a tree of arrays, what they cost on each device, and what changed."""

from typing import Any

from ..named._format import format_value
from ..partitioning.rules._rule_options import check_mesh
from ..partitioning.rules._sharding_rule import ShardingRule
from ..partitioning.specs._active_mesh import MeshLike, get_active_mesh, resolve_mesh
from ..partitioning.specs._bytes_per_device import count_array_bytes
from ._make_report import report_own_shardings, report_specs
from ._match_specs import match_specs
from ._report_comparison import ReportComparison, compare_reports
from ._sharding_report import ShardingReport
from ._table import check_count, format_count, shorten_list
from ._unused_axes import get_shard_shape


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
            shown = shorten_list(problems, source="`validate_partition_specs`")
            count = format_count(len(problems), "problem")
            raise ValueError("\n".join([f"the memory usage is unknown for specs with {count}:", *shown]))
        arrays = [(one.array.dtype, tuple(one.array.shape), one.spec) for one in matched]
        shards = [(dtype, get_shard_shape(shape, spec, mesh)) for dtype, shape, spec in arrays]
        return {
            "total_size": sum(count_array_bytes(dtype, shape) for dtype, shape, _ in arrays),
            "size_per_device": sum(count_array_bytes(dtype, shard) for dtype, shard in shards),
        }

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
