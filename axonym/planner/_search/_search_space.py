"""The candidates of a plan: meshes that a machine has, and the mappings of named axes that a program permits.

A mesh has up to three axes: `replica` and `data`, over which the batch is sharded, and `model`. Parameters are stored
over `data` too, so that `replica` has copies of them, and over `model` where that shards axes of the data alone. While
computing, any set of axes can be sharded over `model` of which no two are in one array. `fixed` replaces any of these
choices.
"""

import collections
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...named._axis_layout import get_entry_axes
from ...named._format import format_axes, suggest_name
from .._plan._candidate import Candidate, CandidateKey
from .._program._collectives import MeshAxes
from .._program._named_program import NamedProgram


Assignment: TypeAlias = dict[str, MeshAxes]
REPLICA, DATA, MODEL = "replica", "data", "model"
_SHARED = "two axes of one array over one mesh axis"
_LACKING = "a mesh without an axis that is fixed"
_UNUSED = "a mesh axis shards nothing"
_MOST_CANDIDATES = 30_000  # a thousand are screened in a second or less


@dataclass(frozen=True)
class Fixed:
    """What is not searched for: sizes of mesh axes, and the mesh axes of named axes.

    Attributes:
        mesh: The sizes of all mesh axes, in order; None to search.
        compute: The mesh axes of named axes while computing, none for those that are not sharded.
        parameters: The same between steps.
    """

    mesh: Mapping[str, int] | None
    compute: Mapping[str, MeshAxes]
    parameters: Mapping[str, MeshAxes]


def parse_fixed(fixed: Mapping[str, Any] | None, names: Sequence[str], devices: int, argument: str = "fixed") -> Fixed:
    """Returns what `fixed` of `plan` says; errors have the name of the argument.

    Raises:
        TypeError: If it is not a mapping of mappings.
        ValueError: If it has an unknown key or name, or a mesh that does not fit the devices.
    """
    fixed = {} if fixed is None else fixed
    if not isinstance(fixed, Mapping) or not all(isinstance(choices, Mapping) for choices in fixed.values()):
        raise TypeError(
            "`fixed` is a mapping such as {'mesh': {'data': 8}, 'compute': {'batch': 'data'}, 'parameters': {'embed': "
            f"'data'}}}}, not {fixed!r}"
        )
    keys = ("mesh", "compute", "parameters")
    for key in fixed:
        if key not in keys:
            raise ValueError(f"`fixed` has no {key!r}{suggest_name(key, keys)}; it takes {', '.join(keys)}")
    mesh = dict(fixed["mesh"]) if "mesh" in fixed else None
    if mesh is not None and not all(isinstance(size, int) for size in mesh.values()):
        raise TypeError(f"`{argument}` has the mesh {mesh}; sizes of mesh axes are integers")
    if mesh is not None and (min(mesh.values(), default=1) < 1 or math.prod(mesh.values()) != devices):
        raise ValueError(
            f"the {argument} mesh {mesh} has {math.prod(mesh.values())} devices, but there are {devices}; name all "
            "of its axes, with sizes of 1 or more"
        )
    compute = _parse_mapping(fixed.get("compute", {}), names, mesh, argument)
    return Fixed(mesh, compute, _parse_mapping(fixed.get("parameters", {}), names, mesh, argument))


def list_candidates(
    named_program: NamedProgram, devices: int, fixed: Fixed, pruned: collections.Counter[str]
) -> list[Candidate]:
    """Returns all candidates, each once; counts those that cannot be, by the reason.

    Raises:
        ValueError: If they are too many.
    """
    candidates: dict[CandidateKey, Candidate] = {}
    for mesh in _list_meshes(devices, fixed):
        for candidate in _list_assignments(named_program, mesh, fixed, pruned):
            candidates.setdefault(candidate.key, candidate)
            _check_candidate_count(len(candidates), named_program.parameter_names)
    return list(candidates.values())


def _check_candidate_count(count: int, names: Sequence[str]) -> None:
    if count > _MOST_CANDIDATES:
        raise ValueError(
            f"there are more than {_MOST_CANDIDATES:,} candidates, since most of the axes {', '.join(names)} never "
            f"meet in an array; fix some of them, such as `fixed={{'compute': {{{names[0]!r}: None}}}}`, or give axes "
            "that are to be sharded alike the same name"
        )


def explain_no_candidate(
    named_program: NamedProgram, devices: int, fixed: Fixed, pruned: collections.Counter[str]
) -> str:
    """Returns why there is no candidate: what `fixed` has that cannot be, or else all reasons and the sizes of axes."""
    meshes = [*_list_meshes(devices, fixed)]
    between = "between steps (`compute` counts for axes that `parameters` lacks)"
    for mapping, arrays, when in (
        (fixed.compute, named_program.arrays, "while computing"),
        ({**fixed.compute, **fixed.parameters}, _list_stored_arrays(named_program), between),
    ):
        problems = [*_describe_shared_axes(named_program, mapping, arrays, when)]
        problems += _describe_remainders(named_program, mapping, meshes)
        if problems:
            return problems[0]
    reasons = "; ".join(f"{count}: {reason}" for reason, count in pruned.items()) or "there is no axis to shard"
    mesh = f" over the mesh {format_axes(tuple(fixed.mesh), tuple(fixed.mesh.values()))}" if fixed.mesh else ""
    sizes = _format_named_sizes(named_program, named_program.sizes)
    return f"{reasons}; the axes are {sizes}{mesh}; fix less, or change sizes"


def _describe_shared_axes(
    named_program: NamedProgram, mapping: Mapping[str, MeshAxes], arrays: frozenset[frozenset[str]], when: str
) -> Iterator[str]:
    """Yields a sentence for each two axes of one array that are fixed over one mesh axis."""
    for (first, first_axes), (second, second_axes) in itertools.combinations(mapping.items(), 2):
        shared = [axis for axis in first_axes if axis in second_axes]
        arrays_with_both = [array for array in arrays if {first, second} <= array]
        if shared and arrays_with_both:
            array = min(arrays_with_both, key=lambda array: (len(array), sorted(array)))
            yield (
                f"`fixed` has {first!r} and {second!r} over mesh axis {shared[0]!r} {when}, but both are axes of one "
                f"array {_format_named_sizes(named_program, array)}; fix one of them over another mesh axis or to "
                "None, or rename one of them in the arrays where they meet"
            )


def _describe_remainders(
    named_program: NamedProgram, mapping: Mapping[str, MeshAxes], meshes: Sequence[Mapping[str, int]]
) -> Iterator[str]:
    """Yields a sentence for each axis that is not divisible by the mesh axes that it is fixed over, in any mesh."""
    for name, mesh_axes in mapping.items():
        meshes_with_axes = [mesh for mesh in meshes if set(mesh_axes) <= set(mesh)]
        counts = sorted({math.prod(mesh[axis] for axis in mesh_axes) for mesh in meshes_with_axes})
        sizes = sorted(named_program.sizes.get(name, ()))
        undivided = [next((size for size in sizes if size % count), None) for count in counts]
        if undivided and None not in undivided:
            axes = f"mesh ax{'is' if len(mesh_axes) == 1 else 'es'} {' and '.join(map(repr, mesh_axes))}"
            yield (
                f"axis {name!r} has size {undivided[0]}, which is not divisible by {axes} of size "
                f"{' or '.join(map(str, counts))}, as `fixed` has it; fix it over other mesh axes, to None, or change "
                "its size"
            )


def _format_named_sizes(named_program: NamedProgram, names: Collection[str]) -> str:
    ordered = [name for name in (*named_program.data_names, *named_program.parameter_names) if name in names]
    return format_axes(ordered, [max(named_program.sizes[name]) for name in ordered])


def _parse_mapping(
    mapping: Mapping[str, Any], names: Sequence[str], mesh: Mapping[str, int] | None, argument: str
) -> dict[str, MeshAxes]:
    axes = tuple(mesh) if mesh is not None else (REPLICA, DATA, MODEL)
    assignment: dict[str, MeshAxes] = {}
    for name, value in mapping.items():
        if not isinstance(name, str):
            example = getattr(name, "name", names[0])
            raise TypeError(f"`{argument}` has {name!r}; give the name of an axis, such as {example!r}")
        if name not in names:
            raise ValueError(
                f"`{argument}` has the axis {name!r}, which no argument has{suggest_name(name, names)}; there are "
                f"{', '.join(names)}"
            )
        mesh_axes = get_entry_axes(value) if isinstance(value, str | tuple | list | None) else (value,)
        if not all(isinstance(axis, str) for axis in mesh_axes):
            raise TypeError(f"`{argument}` has {value!r} for {name!r}; give a mesh axis, a tuple of them, or None")
        if len(mesh_axes) != len(set(mesh_axes)):
            raise ValueError(f"`{argument}` has {name!r} over {mesh_axes}; give each mesh axis once")
        for axis in mesh_axes:
            if axis not in axes:
                hint = "" if mesh is not None else ", or those of a `mesh` that is fixed too"
                raise ValueError(
                    f"`{argument}` has {name!r} over {axis!r}, which is no mesh axis{suggest_name(axis, axes)}; there "
                    f"are {', '.join(axes)}{hint}"
                )
        assignment[name] = mesh_axes
    return assignment


def _list_meshes(devices: int, fixed: Fixed) -> Iterator[dict[str, int]]:
    """Yields the sizes of mesh axes; those of size 1 are left out unless all are."""
    if fixed.mesh is not None:
        yield dict(fixed.mesh)
        return
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    for model, replica in itertools.product(divisors, divisors):
        if devices % (model * replica) == 0:
            sizes = {REPLICA: replica, DATA: devices // model // replica, MODEL: model}
            yield {axis: size for axis, size in sizes.items() if size > 1} or {DATA: 1}


def _list_assignments(
    named_program: NamedProgram, mesh: dict[str, int], fixed: Fixed, pruned: collections.Counter[str]
) -> Iterator[Candidate]:
    """Yields the candidates of a mesh.

    If its axes have other names, the last one has the role of `model`, unless it is the only one.
    """
    axes = list(mesh)
    model_axis = None
    if set(mesh) <= {REPLICA, DATA, MODEL}:
        model_axis = MODEL if MODEL in mesh else None
    elif len(axes) > 1:
        model_axis = axes[-1]
    if model_axis is not None and mesh[model_axis] == 1:  # it shards nothing
        model_axis = None
    if not _list_mesh_axes(fixed.compute, fixed.parameters) <= set(mesh):
        pruned[_LACKING] += 1
        return
    batch_axes = tuple(axis for axis in axes if axis != model_axis and mesh[axis] > 1)
    stored_arrays = _list_stored_arrays(named_program)
    for compute in _list_compute_mappings(named_program, batch_axes, model_axis, fixed):
        if reason := _find_obstacle(named_program, named_program.arrays, compute, mesh):
            pruned[reason] += 1
            continue
        for parameters in _list_parameter_mappings(named_program, compute, batch_axes, fixed):
            if reason := _find_obstacle(named_program, stored_arrays, parameters, mesh):
                pruned[reason] += 1
            elif fixed.mesh is None and not _uses_every_mesh_axis(mesh, compute, parameters):
                pruned[_UNUSED] += 1
            else:
                yield Candidate(mesh, drop_unsharded(compute), drop_unsharded(parameters))


def _find_obstacle(
    named_program: NamedProgram, arrays: frozenset[frozenset[str]], mapping: Assignment, mesh: Mapping[str, int]
) -> str | None:
    """Returns why a mapping cannot shard arrays with these names; None if it can."""
    for array in arrays:
        used_axes = [axis for name in array for axis in mapping.get(name, ())]
        if len(used_axes) != len(set(used_axes)):
            return _SHARED
    for name, mesh_axes in mapping.items():
        count = math.prod(mesh[axis] for axis in mesh_axes)
        if any(size % count for size in named_program.sizes.get(name, ())):
            return f"{name!r} is not divisible by its mesh axes"
    return None


def _list_compute_mappings(
    named_program: NamedProgram, batch_axes: MeshAxes, model_axis: str | None, fixed: Fixed
) -> Iterator[Assignment]:
    """Yields mappings for computing: a data axis over `batch_axes`, and axes of different arrays over `model_axis`."""
    names = (*named_program.parameter_names, *named_program.data_names)
    free_names = [name for name in names if name not in named_program.looped and name not in fixed.compute]
    batch_names: list[str | None] = [name for name in named_program.data_names if name in free_names and batch_axes]
    if not batch_names or _list_mesh_axes(fixed.compute) & set(batch_axes):
        batch_names.insert(0, None)
    for batch_name in batch_names:
        remaining_names = [name for name in free_names if name != batch_name]
        if batch_name is not None:
            # Two axes of the data that change places are the same on the mesh whose sizes change places.
            earlier = named_program.data_names[: named_program.data_names.index(batch_name)]
            remaining_names = [name for name in remaining_names if name not in earlier]
        if not batch_axes:
            remaining_names = [name for name in remaining_names if name in named_program.parameter_names]
        model_sets = _list_apart(remaining_names, named_program.arrays) if model_axis else []
        if not model_sets or model_axis in _list_mesh_axes(fixed.compute, fixed.parameters):
            model_sets.insert(0, ())
        for model_names in model_sets:
            mapping = dict(fixed.compute)
            if batch_name is not None:
                mapping[batch_name] = batch_axes
            yield mapping | {name: (str(model_axis),) for name in model_names}


def _list_parameter_mappings(
    named_program: NamedProgram, compute: Assignment, batch_axes: MeshAxes, fixed: Fixed
) -> Iterator[Assignment]:
    """Yields mappings between steps: that for computing, alone and with further axes over the last of `batch_axes`.

    If no parameter is sharded over the mesh axes of further axes of the data, such as positions, they store these, too.
    """
    base = {**compute, **fixed.parameters}
    yield base
    storage_axes = batch_axes[-1:]  # `data`; over `replica` there are copies
    data_axes = _list_mesh_axes({name: compute.get(name, ()) for name in named_program.data_names})
    used_axes = _list_mesh_axes({name: base.get(name, ()) for name in named_program.parameter_names})
    further_axes = tuple(sorted(data_axes - used_axes - {*batch_axes}))
    arrays = _list_stored_arrays(named_program)
    for mesh_axes in dict.fromkeys((storage_axes, (*storage_axes, *further_axes))):
        sharded = {name for name, name_axes in base.items() if set(mesh_axes) & set(name_axes)}
        # An array has each mesh axis once.
        beside_sharded = {name for array in arrays if sharded & array for name in array}
        unavailable = {*named_program.looped, *fixed.parameters, *beside_sharded}
        free = [name for name in named_program.parameter_names if not base.get(name) and name not in unavailable]
        for names in _list_largest_apart(free, arrays) if mesh_axes else []:
            yield {**base, **dict.fromkeys(names, mesh_axes)}


def _list_stored_arrays(named_program: NamedProgram) -> frozenset[frozenset[str]]:
    """Returns the names of each array that is stored between steps."""
    return frozenset(leaf.names for leaf in named_program.leaves)


def _list_apart(names: Sequence[str], arrays: frozenset[frozenset[str]]) -> list[tuple[str, ...]]:
    """Returns the sets of names of which no two are in one array."""
    neighbors = _find_neighbors(names, arrays)
    sets: list[tuple[str, ...]] = [()]
    for name in names:
        sets += [(*smaller, name) for smaller in sets if not neighbors[name] & set(smaller)]
        _check_candidate_count(len(sets), names)
    return sets[1:]


def _list_largest_apart(names: Sequence[str], arrays: frozenset[frozenset[str]]) -> list[tuple[str, ...]]:
    """Returns the sets of names of which no two are in one array, those alone that no other set contains.

    Source: Bron and Kerbosch, "Algorithm 457: finding all cliques of an undirected graph", 1973, with a pivot.
    """
    neighbors = _find_neighbors(names, arrays)
    sets: list[tuple[str, ...]] = []

    def extend(members: tuple[str, ...], free: list[str], excluded: list[str]) -> None:
        """Adds the largest sets with these members, further ones of `free` and none of `excluded`."""
        if not free and not excluded:
            sets.append(members)
            _check_candidate_count(len(sets), names)
            return
        # A largest set has the pivot or one of its neighbors, so that only these need be tried.
        pivot = min((*free, *excluded), key=lambda name: len(neighbors[name].intersection(free)))
        for name in [name for name in free if name in neighbors[pivot]]:
            remaining_free = [free_name for free_name in free if free_name not in neighbors[name]]
            remaining_excluded = [excluded_name for excluded_name in excluded if excluded_name not in neighbors[name]]
            extend((*members, name), remaining_free, remaining_excluded)
            free, excluded = [free_name for free_name in free if free_name != name], [*excluded, name]

    if names:
        extend((), [*names], [])
    return sets


def _find_neighbors(names: Sequence[str], arrays: frozenset[frozenset[str]]) -> dict[str, frozenset[str]]:
    """Returns for each name those that are in an array with it, and itself."""
    return {name: frozenset([name]).union(*(array for array in arrays if name in array)) for name in names}


def _list_mesh_axes(*mappings: Mapping[str, MeshAxes]) -> set[str]:
    """Returns the mesh axes that some mappings use."""
    return {axis for mapping in mappings for mesh_axes in mapping.values() for axis in mesh_axes}


def _uses_every_mesh_axis(mesh: Mapping[str, int], compute: Assignment, parameters: Assignment) -> bool:
    """Returns whether each mesh axis shards something, and `replica` and `data` differ."""
    if set(mesh) == {DATA}:
        return True
    stored = _list_mesh_axes({name: axes for name, axes in parameters.items() if axes != compute.get(name)})
    return _list_mesh_axes(compute, parameters) == set(mesh) and (REPLICA not in mesh or DATA in stored)


def drop_unsharded(mapping: Assignment) -> dict[str, MeshAxes]:
    """Returns the mapping without the axes that are not sharded, in the order of their names."""
    return {name: mapping[name] for name in sorted(mapping) if mapping[name]}
