"""A step traced on a mesh with a mesh axis for each named axis, so that each dimension of each array has its name.

All mesh axes have size 1 and are Explicit. The types of arrays in the traced program then have a name for each
dimension, in the forward and in the backward pass and in loops: what a mapping does to the program can be counted
without tracing it again.
"""

import collections
import functools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType

from ...mesh import set_mesh
from ...named._array import NamedArray, is_named_array
from ...named._axis_layout import get_entry_axes
from ...partitioning._leaves import count_array_bytes
from ...training._fsdp import fsdp
from ...training._policy import Policy
from ...training._rounded_gather import GATHERED


Dim: TypeAlias = tuple[str, int]  # the name of an axis, empty if it has none, and its size
Origin: TypeAlias = int | None  # the leaf of the arguments that a value is a copy or a part of, if any
_COPIES = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "copy_p",
        "dynamic_slice",
        "expand_dims",
        "name",
        "optimization_barrier",
        "reduce_precision",
        "reshape",
        "reshard",
        "sharding_constraint",
        "slice",
        "squeeze",
        "stop_gradient",
        "transpose",
    }
)
_PRODUCTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})
_ADDITIONS = frozenset({"add", "add_any"})
_SUMS = frozenset({"psum", "psum2", "psum_invariant"})
_RESHARDS = frozenset({"reshard", "sharding_constraint"})
_UPDATES = frozenset({"dynamic_update_slice", "scatter"})  # which XLA does in place
_LOOKUPS = frozenset({"gather"})  # which read a small part of their first operand
_ORDERED = frozenset({"cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "rev", "sort"})  # along some dimensions
_KERNELS = frozenset({"pallas_call"})  # whose programs are of blocks, which have no names


class NamedShape(NamedTuple):
    """The dimensions of an array, the bytes of an element, and the argument that it is a copy or a part of."""

    dims: tuple[Dim, ...]
    itemsize: float
    origin: Origin = None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.dims)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.dims if name)


class Product(NamedTuple):
    """A product of arrays, such as `dot_general`.

    Attributes:
        operands: Its operands, in which dimensions have no name if the product needs them whole.
        gathered_names: For each operand, the names of the dimensions that the product needs whole.
        result: Its result.
        reduced: The dimensions that it sums over.
    """

    operands: tuple[NamedShape, ...]
    gathered_names: tuple[tuple[str, ...], ...]
    result: NamedShape
    reduced: tuple[Dim, ...]

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(size for _, size in (*self.result.dims, *self.reduced))


class Sum(NamedTuple):
    """A sum over dimensions that may be sharded: of a product, or of several that are added.

    Attributes:
        result: The sum, as it is after a reshard that directly follows and shards more of its dimensions.
        reduced: The dimensions that it sums over.
    """

    result: NamedShape
    reduced: tuple[Dim, ...]


@dataclass(frozen=True)
class NamedProgram:
    """What a step computes, by named axes.

    Products and sums in a loop that slices an argument along its first axis, as loops over layers do, have that axis as
    a dimension of size 1, and what such a loop collects has it first.

    Attributes:
        leaves: The arrays of the arguments, in the order of the tree.
        products: Products, and how often each is computed.
        sums: Sums, and how often each is computed.
        reshards: Arrays that lose the sharding of some dimensions, before and after, and how often.
        saved: Arrays that iterations of loops collect, such as activations for the backward pass, and their number.
        offloaded: The same, of arrays in the memory of the host.
        carried: What loops over layers pass from one layer to the next that has axes of the data, such as activations
            and their gradients, and how many loops do.
        mixed: The names of axes along which layers mix the elements of what they pass on, as attention does positions.
        read: The leaves that are read beside products, as by optimizers; lookups and updates in place do not count.
        written: The results that are new arrays, and how many are alike; arguments updated in place do not count.
        arrays: For each array, the names of its dimensions that have more than one element.
        sizes: The sizes that each axis has in some array.
        looped: The names of the axes that loops slice.
        checkpoint_names: The names that the step gives to values, as `tree_checkpoint_name` does.
        parameter_names: The names of the axes of the first argument.
        data_names: The names of the axes that only other arguments have.
        layer_names: The names of the layer axes of `Stacked` in the first argument, if stages are to be searched.
        shared_names: The axes of parameters that share no array with axes of the data, but the shards of a function,
            and that a mesh axis of the batch may shard, too, such as experts; see `find_shared_names`.
    """

    leaves: tuple[NamedShape, ...]
    products: Mapping[Product, int]
    sums: Mapping[Sum, int]
    reshards: Mapping[tuple[NamedShape, NamedShape], int]
    saved: Mapping[NamedShape, int]
    offloaded: Mapping[NamedShape, int]
    carried: Mapping[NamedShape, int]
    mixed: frozenset[str]
    read: frozenset[int]
    written: Mapping[NamedShape, int]
    arrays: frozenset[frozenset[str]]
    sizes: Mapping[str, frozenset[int]]
    looped: frozenset[str]
    checkpoint_names: tuple[str, ...]
    parameter_names: tuple[str, ...]
    data_names: tuple[str, ...]
    layer_names: tuple[str, ...] = ()
    shared_names: tuple[str, ...] = ()

    @functools.cached_property
    def stored_arrays(self) -> frozenset[frozenset[str]]:
        """The names of each array that is sharded as between steps: arguments, and results such as logits."""
        return frozenset(shape.names for shape in (*self.leaves, *self.written))

    @property
    def flops(self) -> float:
        """The floating-point operations of all products."""
        return sum(product.flops * runs for product, runs in self.products.items())


def make_named_shape(names: Sequence[str] | None, shape: Sequence[int], dtype: Any) -> NamedShape:
    """Returns the shape of an array whose first dimensions have these names; the others have none."""
    itemsize = count_array_bytes(dtype, (8,)) / 8  # elements may take half a byte
    names = tuple(names or ())
    names += ("",) * (len(shape) - len(names))
    return NamedShape(tuple(zip(names, shape, strict=True)), itemsize)


def trace_named_program(fn: Any, args: tuple[Any, ...], gather_policy: Policy | None = None) -> NamedProgram:
    """Traces a function with a mesh axis for each named axis of its arguments.

    Args:
        fn: A plain function.
        args: Its arguments, in which shapes stand for arrays.
        gather_policy: How parameters are gathered and used.
    """
    names = _list_names(args)
    jaxpr = _trace_with_names(fn, args, {name: name for name in names}, gather_policy).jaxpr
    parameter_names = _list_names(args[:1])
    data_names = {*names} - {*parameter_names}
    variables = jaxpr.invars
    leaves = tuple(_read_shape(variable.aval) for variable in variables)
    reader = _ProgramReader(leaves)
    for variable in variables:
        reader.note_array(variable.aval)
    origins = reader.read(jaxpr, range(len(variables)), 1)
    results = zip(jaxpr.outvars, origins, strict=True)
    return NamedProgram(
        leaves=leaves,
        products=dict(reader.products),
        sums=reader.count_sums(),
        reshards=dict(reader.reshards),
        saved=dict(reader.saved),
        offloaded=dict(reader.offloaded),
        carried={shape: count for shape, count in reader.carried.items() if shape.names & data_names},
        mixed=frozenset(reader.mixed),
        read=frozenset(reader.read_leaves),
        written=collections.Counter(_read_shape(variable.aval) for variable, origin in results if origin is None),
        arrays=frozenset(reader.arrays),
        # An array that is broadcast, such as the table that a lookup adds its gradients to, has size 1.
        sizes={name: frozenset(sizes - {1} or sizes) for name, sizes in reader.sizes.items()},
        looped=frozenset(leaves[leaf].dims[0][0] for leaf in reader.looped if leaves[leaf].dims) - {""},
        checkpoint_names=(*reader.checkpoint_names,),
        parameter_names=parameter_names,
        data_names=tuple(name for name in names if name in data_names),
    )


def find_shared_names(fn: Any, args: tuple[Any, ...], named_program: NamedProgram) -> NamedProgram:
    """Returns the program with its `shared_names`, and with arrays that tell which axes cannot share a mesh axis.

    Within a function of shards, arrays have no names. Whether it permits an axis of parameters and one of the data over
    one mesh axis is found out by tracing the step so. The first axis of the data is taken as the batch.
    """
    data_names = {*named_program.data_names}
    names_of_products = [product.result.names for product in named_program.products]
    shared_names, arrays = [], set(named_program.arrays)
    for name in named_program.parameter_names:
        meets_data = any(name in array and array & data_names for array in arrays)
        shares_products = any(name in group and group & data_names for group in names_of_products)
        if shares_products and not meets_data and name not in named_program.looped:
            mapping = {other_name: other_name for other_name in _list_names(args)}
            for data_name in named_program.data_names:
                try:
                    _trace_with_names(fn, args, {**mapping, name: data_name})
                except Exception:  # of Axonym or of JAX, since the step itself can be traced
                    arrays.add(frozenset({name, data_name}))
            if frozenset({name, named_program.data_names[0]}) not in arrays:
                shared_names.append(name)
    return replace(named_program, shared_names=tuple(shared_names), arrays=frozenset(arrays))


def _trace_with_names(
    fn: Any, args: tuple[Any, ...], mapping: Mapping[str, str], gather_policy: Policy | None = None
) -> Any:
    """Traces a function on a mesh with an axis of size 1 for each name in a mapping."""
    mesh = AbstractMesh((1,) * len(mapping), tuple(mapping), axis_types=(AxisType.Explicit,) * len(mapping))
    with set_mesh(mesh):
        return fsdp(fn, mapping, mapping, policy=gather_policy, retrace_warning=False).trace(*args)


def _list_names(tree: Any) -> tuple[str, ...]:
    """Returns the names of all axes in a tree, in the order in which they occur."""
    arrays = (leaf for leaf in jax.tree.leaves(tree, is_leaf=is_named_array) if isinstance(leaf, NamedArray))
    return tuple(dict.fromkeys(name for array in arrays for name in array.names))


def _find_updated_case(equation: Any, broadcasts: Set[Any]) -> int | None:
    """Returns the operand of a selection that is its result but for some places, whose index and value are broadcast.

    XLA computes it within the operations that use the result: it reads nothing more.
    """
    if equation.primitive.name != "select_n":
        return None
    whole = [
        index
        for index, variable in enumerate(equation.invars)
        if not isinstance(variable, core.Literal) and variable not in broadcasts
    ]
    return whole[0] if len(whole) == 1 and whole[0] > 0 else None


def _get_partitions(aval: Any) -> tuple[Any, ...]:
    """Returns the entries of the spec of a type; those of tokens and keys have none."""
    sharding = getattr(aval, "sharding", None)
    return () if sharding is None else sharding.spec.partitions


def _read_shape(aval: Any, origin: Origin = None) -> NamedShape:
    names = [entry if isinstance(entry, str) else "" for entry in _get_partitions(aval)]
    return make_named_shape(names, aval.shape, aval.dtype)._replace(origin=origin)


def _read_saved_shape(aval: Any) -> NamedShape:
    """Returns the shape of what a loop saves; from a `shard_map`, it has the names of all arguments, with size 1."""
    shape = _read_shape(aval)
    entries = [entry for entry in _get_partitions(aval) if not isinstance(entry, str)]
    return shape._replace(dims=(*shape.dims, *((name, 1) for entry in entries for name in get_entry_axes(entry))))


class _CountedSum(NamedTuple):
    """A sum, its runs, which are 0 once it is added to another, and the dimensions of the loops that it is in."""

    sum: Sum
    runs: int
    layer_dims: tuple[Dim, ...]


class _ProgramReader:
    """Reads the equations of a traced program, those of loops as often as they run."""

    def __init__(self, leaves: tuple[NamedShape, ...]) -> None:
        self._leaves = leaves
        self.products: collections.Counter[Product] = collections.Counter()
        self._sums: list[_CountedSum] = []
        self.reshards: collections.Counter[tuple[NamedShape, NamedShape]] = collections.Counter()
        self.saved: collections.Counter[NamedShape] = collections.Counter()
        self.offloaded: collections.Counter[NamedShape] = collections.Counter()
        self.carried: collections.Counter[NamedShape] = collections.Counter()
        self.mixed: set[str] = set()
        self.read_leaves: set[int] = set()
        self.arrays: set[frozenset[str]] = set()
        self.sizes: dict[str, set[int]] = collections.defaultdict(set)
        self.looped: set[int] = set()
        self.checkpoint_names: dict[str, None] = {}  # in their order
        self._shard_map_dims: tuple[Dim, ...] = ()  # further dimensions of products in the `shard_map` that is read
        self._layer_dims: tuple[Dim, ...] = ()  # the same for loops

    def read(self, jaxpr: Any, argument_origins: Sequence[Origin], runs: int) -> list[Origin]:
        """Reads a program whose arguments have these origins; returns the origins of its results."""
        origins: dict[Any, Origin] = dict(zip(jaxpr.invars, argument_origins, strict=True))
        # The index in `_sums` of each variable that may not be summed over devices yet.
        partial_sums: dict[Any, int] = {}
        use_counts: collections.Counter[Any] = collections.Counter()
        for variables in (*(equation.invars for equation in jaxpr.eqns), jaxpr.outvars):
            use_counts.update(variable for variable in variables if not isinstance(variable, core.Literal))
        broadcasts = {eqn.outvars[0] for eqn in jaxpr.eqns if eqn.primitive.name == "broadcast_in_dim"}
        for equation in jaxpr.eqns:
            operands = [_look_up(origins, variable) for variable in equation.invars]
            updated = _find_updated_case(equation, broadcasts)
            results = self._read_equation(equation, operands, runs) if updated is None else [operands[updated]]
            self._follow_sum(equation, partial_sums, runs)
            for variable, origin in zip(equation.outvars, results, strict=True):
                origins[variable] = origin
                self.note_array(variable.aval)
                if use_counts[variable] > 1:  # so it is summed first, once for all uses
                    partial_sums.pop(variable, None)
        return [_look_up(origins, variable) for variable in jaxpr.outvars]

    def _read_equation(self, equation: Any, operands: list[Origin], runs: int) -> list[Origin]:
        name = equation.primitive.name
        if name in _PRODUCTS:
            product = _add_dims(_read_product(equation, operands), self._shard_map_dims)
            self.products[_add_dims(product, self._layer_dims)] += runs
            self._sums.append(_CountedSum(Sum(product.result, product.reduced), runs, self._layer_dims))
        elif name in _SUMS and self._shard_map_dims:
            self._note_sums_of_shards(equation, runs)
        elif name == "shard_map":
            return self._read_shard_map(equation, operands, runs)
        elif name == "scan":
            return self._read_scan(equation, operands, runs)
        elif name == "cond":
            return self._read_cond(equation, operands, runs)
        elif name in _COPIES:
            if name in _RESHARDS:
                self._note_reshard(equation, operands, runs)
            elif name == "name" and equation.params["name"] != GATHERED:
                self.checkpoint_names[equation.params["name"]] = None
            return operands[: len(equation.outvars)]  # not the indices, which are the other operands of a slice
        elif name in _UPDATES:
            return operands[:1]
        elif name not in _KERNELS and any(list_inner_jaxprs(equation)):
            return self._read_inner(equation, operands, runs)
        elif name not in _LOOKUPS:
            self.read_leaves.update(origin for origin in operands if origin is not None)
        return [None] * len(equation.outvars)

    def count_sums(self) -> dict[Sum, int]:
        counts: collections.Counter[Sum] = collections.Counter()
        for reduction, runs, layer_dims in self._sums:
            result = reduction.result._replace(dims=(*reduction.result.dims, *layer_dims))
            counts[reduction._replace(result=result)] += runs
        return dict(+counts)  # without those that were added to others

    def _follow_sum(self, equation: Any, partial_sums: dict[Any, int], runs: int) -> None:
        """Follows sums up to where they need a collective; those added to one another before share one."""
        name, results = equation.primitive.name, equation.outvars
        operands: Any = [_look_up(partial_sums, variable) for variable in equation.invars]
        if name in _PRODUCTS:
            partial_sums[results[0]] = len(self._sums) - 1
        elif name in _COPIES and operands[0] is not None:
            partial_sums[results[0]] = operands[0]
            counted = self._sums[operands[0]]
            after = _read_shape(results[0].aval)
            if name in _RESHARDS and counted.sum.result.names < after.names:
                self._sums[operands[0]] = counted._replace(sum=counted.sum._replace(result=after), runs=runs)
        elif name in _ADDITIONS and None not in operands:
            first, second = self._sums[operands[0]], self._sums[operands[1]]
            if first.sum.result == second.sum.result:  # else each needs a collective of its own
                reduced = tuple(dict.fromkeys((*first.sum.reduced, *second.sum.reduced)))
                self._sums[operands[0]] = first._replace(sum=first.sum._replace(reduced=reduced), runs=runs)
                self._sums[operands[1]] = second._replace(runs=0)
                partial_sums[results[0]] = operands[0]

    def _note_sums_of_shards(self, equation: Any, runs: int) -> None:
        """Notes sums over mesh axes in a function of shards; results are taken to be sharded over its other axes."""
        axes = equation.params["axes"]
        other_dims = tuple(dim for dim in self._shard_map_dims if dim[0] not in axes)
        for variable in equation.outvars:
            result = _read_shape(variable.aval)
            reduction = Sum(result._replace(dims=(*result.dims, *other_dims)), tuple((axis, 1) for axis in axes))
            self._sums.append(_CountedSum(reduction, runs, self._layer_dims))

    def _read_inner(self, equation: Any, operands: list[Origin], runs: int) -> list[Origin]:
        results: list[Origin] = [None] * len(equation.outvars)
        for inner in list_inner_jaxprs(equation):
            has_same_arguments = len(inner.invars) == len(operands)
            inner_results = self.read(inner, operands if has_same_arguments else [None] * len(inner.invars), runs)
            if len(inner_results) == len(results):
                results = inner_results
        return results

    def _read_shard_map(self, equation: Any, operands: list[Origin], runs: int) -> list[Origin]:
        """Reads a function of shards, whose arrays have no names: each product has all names of the arguments."""
        outer_dims = self._shard_map_dims
        entries = [entry for variable in equation.invars for entry in _get_partitions(variable.aval)]
        names = dict.fromkeys(name for entry in entries for name in get_entry_axes(entry))
        self._shard_map_dims = tuple((name, 1) for name in names)
        results = self._read_inner(equation, operands, runs)
        self._shard_map_dims = outer_dims
        return results

    def _read_scan(self, equation: Any, operands: list[Origin], runs: int) -> list[Origin]:
        body, length = equation.params["jaxpr"], equation.params["length"]
        # Operands are constants, then carries, then stacks; results are carries, then stacks. They are counted by rank,
        # because JAX has no parameters for their numbers.
        carried = sum(map(_has_equal_rank, equation.outvars, body.outvars))
        constants = sum(map(_has_equal_rank, equation.invars, body.invars)) - carried
        scanned = constants + carried  # the index of the first stack
        outer_dims = self._layer_dims
        for variable, origin in zip(equation.invars[scanned:], operands[scanned:], strict=True):
            # A part of an argument that is reshaped first, as a batch is into microbatches, keeps its axis.
            if origin is not None and self._leaves[origin].sizes == tuple(variable.aval.shape):
                self.looped.add(origin)
                layer_dim = self._leaves[origin].dims[0][0], 1
                if layer_dim[0] and layer_dim not in self._layer_dims:
                    self._layer_dims = (*self._layer_dims, layer_dim)
        new_dims = self._layer_dims[len(outer_dims) :]
        if new_dims:
            carries = (variable.aval for variable in equation.outvars[:carried] if hasattr(variable.aval, "shape"))
            self.carried.update(runs * [_read_shape(aval) for aval in carries])
            if not equation.params["reverse"]:  # gradients of a loss of each layer may mix, but not what layers compute
                self.mixed |= _find_mixed_carries(body, constants, carried)
        # The stacks of results are mostly activations for the backward pass, or gradients.
        for variable in equation.outvars[carried:]:
            is_on_host = getattr(getattr(variable.aval, "memory_space", None), "name", "") == "Host"
            collected = self.offloaded if is_on_host else self.saved
            shape = _read_saved_shape(variable.aval)
            if new_dims and shape.dims[0][1] == length:
                shape = shape._replace(dims=((new_dims[0][0], length), *shape.dims[1:]))
            collected[shape] += 1
        origins = [*operands[:constants], *[None] * carried, *operands[scanned:]]
        results = self.read(body, origins, runs * length)
        self._layer_dims = outer_dims
        return [*[None] * carried, *results[carried:]]

    def _read_cond(self, equation: Any, operands: list[Origin], runs: int) -> list[Origin]:
        """Reads the branch with the most operations, and notes the arrays of the others."""
        branches: Sequence[Any] = equation.params["branches"]
        branch_flops: list[float] = []
        for branch in branches:
            reader = _ProgramReader(self._leaves)
            reader._shard_map_dims, reader._layer_dims = self._shard_map_dims, self._layer_dims
            reader.read(branch, operands[1:], 1)
            self.arrays |= reader.arrays
            for name, sizes in reader.sizes.items():
                self.sizes[name] |= sizes
            branch_flops.append(sum(product.flops * count for product, count in reader.products.items()))
        return self.read(branches[branch_flops.index(max(branch_flops))], operands[1:], runs)

    def _note_reshard(self, equation: Any, operands: list[Origin], runs: int) -> None:
        source, target = _read_shape(equation.invars[0].aval), _read_shape(equation.outvars[0].aval)
        # Where nothing stays sharded, it is for a lookup, which programs on Auto meshes do without.
        if operands[0] is None and source.names - target.names and target.names:
            self.reshards[source, target] += runs

    def note_array(self, aval: Any) -> None:
        if not hasattr(aval, "shape"):
            return
        shape = _read_shape(aval)
        # Along dimensions of size 1 an array is only broadcast: others can have the mesh axis of their name.
        self.arrays.add(frozenset(name for name, size in shape.dims if name and size > 1))
        for name, size in shape.dims:
            if name:
                self.sizes[name].add(size)


def _look_up(values: Mapping[Any, int | None], variable: Any) -> int | None:
    """Returns what is known of a variable of a jaxpr; None for constants, which cannot be keys."""
    return None if isinstance(variable, core.Literal) else values.get(variable)


def _read_product(equation: Any, origins: list[Origin]) -> Product:
    operands = [_read_shape(variable.aval, origins[number]) for number, variable in enumerate(equation.invars[:2])]
    result = _read_shape(equation.outvars[0].aval)
    if equation.primitive.name == "conv_general_dilated":
        summed = equation.params["dimension_numbers"].rhs_spec[1:]  # the kernel's inputs and window, not its outputs
        return Product(tuple(operands), ((), ()), result, tuple(operands[1].dims[dim] for dim in summed))
    numbers = equation.params.get("dimension_numbers")
    groups: Mapping[int, Any] = {}  # of dimensions that a ragged product divides: each row is in one of them
    if numbers is None:
        ragged = equation.params["ragged_dot_dimension_numbers"]
        numbers = ragged.dot_dimension_numbers
        groups = dict.fromkeys(ragged.lhs_ragged_dimensions, equation.invars[2].aval.shape[-1])
    contracted, batched = numbers
    reduced: list[Dim] = []
    for left_dim, right_dim in zip(*contracted, strict=True):
        (left_name, size), (right_name, _) = operands[0].dims[left_dim], operands[1].dims[right_dim]
        reduced.append((left_name if left_name == right_name else "", -(-size // groups.get(left_dim, 1))))
    # A dimension is gathered first if it has no name in the result or, summed over, another in the other operand.
    product_operands: list[NamedShape] = []
    gathered_names: list[tuple[str, ...]] = []
    free_dims = iter(result.dims[len(batched[0]) :])
    for operand, summed_dims, batch_dims in zip(operands, contracted, batched, strict=True):
        dims = list(operand.dims)
        for dim, (_, size) in enumerate(operand.dims):
            if dim in summed_dims:
                dims[dim] = reduced[tuple(summed_dims).index(dim)][0], size
            elif dim not in batch_dims:
                dims[dim] = next(free_dims, ("", 1))[0], size
        product_operands.append(operand._replace(dims=tuple(dims)))
        pairs = zip(operand.dims, dims, strict=True)
        gathered_names.append(tuple(name for (name, _), (needed_name, _) in pairs if name and not needed_name))
    return Product(tuple(product_operands), tuple(gathered_names), result, tuple(reduced))


def _add_dims(product: Product, dims: tuple[Dim, ...]) -> Product:
    """Adds dimensions to both operands and to the result of a product."""
    operands = tuple(operand._replace(dims=(*operand.dims, *dims)) for operand in product.operands)
    return product._replace(operands=operands, result=product.result._replace(dims=(*product.result.dims, *dims)))


def _find_mixed_carries(body: Any, constants: int, carried: int) -> Set[str]:
    """Returns the names of the axes along which iterations of a loop mix the elements of what they carry."""
    inputs: list[Set[str]] = [frozenset()] * len(body.invars)
    carries = slice(constants, constants + carried)
    while (mixed := _find_mixed(body, inputs)[:carried]) != inputs[carries]:
        inputs[carries] = mixed
    carried_dims = [dict(_list_named_dims(variable.aval)) for variable in body.outvars[:carried]]
    return {name for names, dims in zip(mixed, carried_dims, strict=True) for name in names & {*dims}}


def _find_mixed(jaxpr: Any, inputs: Sequence[Set[str]]) -> list[Set[str]]:
    """Returns for each result of a program the axes that some operation on the way to it has summed over or sliced.

    Args:
        jaxpr: The program.
        inputs: The same for each of its arguments.
    """
    mixed: dict[Any, Set[str]] = dict(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        operands = [_get_mixed(mixed, variable) for variable in equation.invars]
        mixed_names = frozenset[str]().union(*operands)
        inner = [*list_inner_jaxprs(equation)] if name not in _KERNELS else []
        if len(inner) == 1 and name != "scan" and len(inner[0].invars) == len(operands):
            results = _find_mixed(inner[0], operands)
        elif inner:  # such as loops, in which each result may depend on all others
            further = [
                names for program in inner for names in _find_mixed(program, [mixed_names] * len(program.invars))
            ]
            results = [mixed_names.union(*further)] * len(equation.outvars)
        else:
            mixed_names = mixed_names.union(get_entry_axes(equation.params.get("axes")) if name in _SUMS else ())
            results = [mixed_names | _find_lost_names(equation, variable.aval) for variable in equation.outvars]
        mixed.update(zip(equation.outvars, results, strict=True))
    return [_get_mixed(mixed, variable) for variable in jaxpr.outvars]


def _get_mixed(mixed: Mapping[Any, Set[str]], variable: Any) -> Set[str]:
    return frozenset() if isinstance(variable, core.Literal) else mixed.get(variable, frozenset())


def _find_lost_names(equation: Any, result: Any) -> Set[str]:
    """Returns the names of axes along which a result is not as long as an operand, lacks, or has in another order."""
    name, result_dims = equation.primitive.name, _list_named_dims(result)
    if name in _ORDERED:
        params = equation.params
        dims = params.get("dimensions") or (params.get("dimension", params.get("axis")),)
        result_dims -= {dim for number, dim in enumerate(_read_shape(result).dims) if number in dims}
    lost = {dim for variable in equation.invars for dim in _list_named_dims(variable.aval)} - result_dims
    if name == "reshape":  # which divides axes, and joins them
        lost = {dim for dim in lost if dim[0] not in dict(result_dims)}
    gathered = _read_product(equation, [None, None]).gathered_names if name in _PRODUCTS else ()
    return frozenset(dict(lost)).union(*gathered)


def _list_named_dims(aval: Any) -> Set[Dim]:
    dims = zip(_get_partitions(aval), getattr(aval, "shape", ()), strict=False)
    return {(name, size) for entry, size in dims for name in get_entry_axes(entry)}


def _has_equal_rank(outer: Any, inner: Any) -> bool:
    """Returns whether iterations see an operand or result of a loop as it is, not a slice of a stack."""
    return len(getattr(outer.aval, "shape", ())) == len(getattr(inner.aval, "shape", ()))


def list_inner_jaxprs(equation: Any) -> Iterator[Any]:
    """Yields the jaxprs that an equation calls."""
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else [value]:
            if isinstance(inner, core.Jaxpr):
                yield inner
