"""The candidates of a plan: meshes that a machine has, and the mappings of named axes that a program permits.

A mesh has up to six axes. The batch is sharded over `replica` and `data`, and over `stage` and `expert`, which shard
other axes, too: layers, and an axis that shares no array with the batch, but the shards of a function, such as experts.
Another axis of the data, such as positions, is sharded over `context`. While computing, any set of axes can be sharded
over `model` of which no two are in one array. Parameters are stored over `data` too, so that `replica` has copies of
them, and over `model` and `context` where these shard axes of the data alone. `fixed` replaces any of these choices.
"""

import collections
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..._ground.formats import format_axes, suggest_name
from ...named._axis_layout import get_entry_axes
from .._plan._candidate import Candidate, CandidateKey
from .._program._collectives import MeshAxes
from .._program._named_program import NamedProgram


Assignment: TypeAlias = dict[str, MeshAxes]
STAGE, REPLICA, DATA, EXPERT, CONTEXT, MODEL = _MESH_AXES = "stage", "replica", "data", "expert", "context", "model"
_SHARED = "two axes of one array over one mesh axis"
_LACKING = "a mesh without an axis that is fixed"
_UNUSED = "a mesh axis shards nothing"
_INDIVISIBLE = "no axis along which layers do not mix can be divided into as many microbatches as there are stages"
_MOST_CANDIDATES = 30_000  # a thousand are screened in a second or less
_MOST_STAGES = 16
_MICROBATCHES = (1, 2, 4, 8)  # for each stage


@dataclass(frozen=True)
class Fixed:
    """What is not searched for: sizes of mesh axes, and the mesh axes of named axes.

    Attributes:
        mesh: The sizes of all mesh axes, in order; None to search.
        compute: The mesh axes of named axes while computing, none for those that are not sharded.
        parameters: The same between steps.
        microbatches: Into how many microbatches stages divide an axis; empty to search.
    """

    mesh: Mapping[str, int] | None
    compute: Mapping[str, MeshAxes]
    parameters: Mapping[str, MeshAxes]
    microbatches: Mapping[str, int]


class Roles(NamedTuple):
    """What the axes of a mesh are for.

    Attributes:
        batch_axes: Those that shard the batch, in order, that of stages last.
        storage_axes: The last of them that neither experts nor stages use, over which parameters are stored.
        expert: That of experts, if there is one.
        stage: That of stages, if there is one.
        context: That of another axis of the data, if there is one.
        model: That of any set of axes, if there is one.
    """

    batch_axes: MeshAxes
    storage_axes: MeshAxes
    expert: str | None
    stage: str | None
    context: str | None
    model: str | None


def parse_fixed(fixed: Mapping[str, Any] | None, names: Sequence[str], devices: int, argument: str = "fixed") -> Fixed:
    """Returns what `fixed` of `plan` says; errors have the name of the argument.

    Raises:
        TypeError: If it is not a mapping of mappings.
        ValueError: If it has an unknown key or name, or a mesh that does not fit the devices.
    """
    fixed = {} if fixed is None else fixed
    if not isinstance(fixed, Mapping) or not all(isinstance(choices, Mapping) for choices in fixed.values()):
        raise TypeError(
            f"`{argument}` is a mapping of mappings, such as {{'mesh': {{'data': 8}}, 'compute': {{'batch': 'data'}}, "
            f"'parameters': {{'embed': 'data'}}, 'microbatches': {{'batch': 8}}}}, not {fixed!r}"
        )
    keys = ("mesh", "compute", "parameters", "microbatches")
    for key in fixed:
        if key not in keys:
            raise ValueError(f"`{argument}` has no {key!r}{suggest_name(key, keys)}; it takes {', '.join(keys)}")
    mesh = dict(fixed["mesh"]) if "mesh" in fixed else None
    if mesh is not None and not all(isinstance(name, str) and isinstance(size, int) for name, size in mesh.items()):
        raise TypeError(
            f"`{argument}` has the mesh {mesh}; names of mesh axes are strings, and their sizes are integers"
        )
    if mesh is not None and (min(mesh.values(), default=1) < 1 or math.prod(mesh.values()) != devices):
        raise ValueError(
            f"the {argument} mesh {mesh} has {math.prod(mesh.values())} devices, but there are {devices}; name all "
            "of its axes, with sizes of 1 or more"
        )
    compute = _parse_mapping(fixed.get("compute", {}), names, mesh, argument)
    parameters = _parse_mapping(fixed.get("parameters", {}), names, mesh, argument)
    microbatches = dict(fixed.get("microbatches", {}))
    if len(microbatches) > 1 or not all(isinstance(count, int) and count > 0 for count in microbatches.values()):
        raise ValueError(
            f"`{argument}` has {microbatches} as microbatches; give an axis and a number, as {{'batch': 8}}"
        )
    for name in microbatches:
        if name not in names:
            raise ValueError(
                f"`{argument}` has microbatches of {name!r}, which no argument has{suggest_name(name, names)}; there "
                f"are {', '.join(names)}"
            )
    return Fixed(mesh, compute, parameters, microbatches)


def list_candidates(
    named_program: NamedProgram, devices: int, fixed: Fixed, pruned: collections.Counter[str]
) -> list[Candidate]:
    """Returns all candidates, each once; counts those that cannot be, by the reason.

    Raises:
        ValueError: If they are too many, or microbatches are fixed that no stages divide.
    """
    for name in fixed.microbatches:
        if name not in named_program.data_names:
            raise ValueError(
                f"`fixed` has microbatches of {name!r}, an axis of the parameters; give one of the data, of which "
                f"there are {', '.join(named_program.data_names) or 'none'}"
            )
    candidates: dict[CandidateKey, Candidate] = {}
    for mesh in _list_meshes(named_program, devices, fixed):
        for candidate in _list_assignments(named_program, mesh, fixed, pruned):
            candidates.setdefault(candidate.key, candidate)
            _check_candidate_count(len(candidates), named_program.parameter_names)
    if fixed.microbatches and candidates and not any(candidate.layers for candidate in candidates.values()):
        raise ValueError(
            "`fixed` has microbatches, which only stages divide, but no candidate has stages; give the fixed mesh an "
            "axis 'stage', for the layers of a `Stacked`, or leave the microbatches out"
        )
    return list(candidates.values())


def list_fixed_notes(named_program: NamedProgram, fixed: Fixed) -> Iterator[str]:
    """Yields notes on fixed choices that may mean something else than their author expects."""
    for name in fixed.microbatches:
        if name in named_program.mixed:
            yield (
                f"layers may mix what is along {name!r}, as attention does along positions, and then compute something "
                "else in microbatches of it; compare losses with one device"
            )
    unknown_axes = [axis for axis in fixed.mesh or () if axis not in _MESH_AXES]
    if fixed.mesh is not None and len(fixed.mesh) > 1 and unknown_axes:
        hints = "".join(suggest_name(axis, _MESH_AXES) for axis in unknown_axes)
        yield (
            f"mesh axes of other names than {', '.join(_MESH_AXES)} have no roles of their own{hints}: the last axis "
            "is for any axes, the others are for the batch"
        )


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
    meshes = [*_list_meshes(named_program, devices, fixed)]
    between = "between steps (`compute` counts for axes that `parameters` lacks)"
    for mapping, arrays, when in (
        (fixed.compute, named_program.arrays, "while computing"),
        ({**fixed.compute, **fixed.parameters}, named_program.stored_arrays, between),
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
    axes = tuple(mesh) if mesh is not None else _MESH_AXES
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


def _list_meshes(named_program: NamedProgram, devices: int, fixed: Fixed) -> Iterator[dict[str, int]]:
    """Yields the sizes of mesh axes; those of size 1 are left out unless all are.

    To have fewer, there is one of `stage`, `replica` and `context` at most, and `context` beside `model` only, which
    shards positions as well.
    """
    if fixed.mesh is not None:
        yield dict(fixed.mesh)
        return
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    layer_sizes = [size for name in _list_layer_names(named_program, fixed) for size in named_program.sizes[name]]
    experts = [1, *(size for name in named_program.shared_names for size in named_program.sizes[name])]
    stage_counts = [1]
    if layer_sizes:
        stage_counts = [size for size in divisors if size <= _MOST_STAGES and math.gcd(*layer_sizes) % size == 0]
    expert_counts = [size for size in divisors if max(experts) % size == 0]
    context_counts = divisors if len(named_program.data_names) > 1 else [1]
    counts = itertools.product(stage_counts, divisors, expert_counts, context_counts, divisors)
    for stage, replica, expert, context, model in counts:
        data, remainder = divmod(devices, stage * replica * expert * context * model)
        is_considered = [stage, replica, context].count(1) >= 2 and (context == 1 or min(data, model) > 1)
        if remainder == 0 and is_considered:
            sizes = dict(zip(_MESH_AXES, (stage, replica, data, expert, context, model), strict=True))
            yield {axis: size for axis, size in sizes.items() if size > 1} or {DATA: 1}


def _list_layer_names(named_program: NamedProgram, fixed: Fixed) -> list[str]:
    """Returns the axes of layers that may be stages: those that a loop slices and that are not fixed to None."""
    names = named_program.layer_names
    return [name for name in names if name in named_program.looped and fixed.compute.get(name) != ()]


def _find_roles(mesh: Mapping[str, int]) -> Roles:
    """Returns what the axes of a mesh are for, by their names.

    If these are none of those of the search, the last axis is that of any set of axes, unless it is the only one.
    """
    axes = [axis for axis in mesh if mesh[axis] > 1]  # one of size 1 shards nothing
    expert, stage, context, model = None, None, None, None
    if set(mesh) <= {*_MESH_AXES}:
        expert, stage, context, model = (axis if axis in axes else None for axis in (EXPERT, STAGE, CONTEXT, MODEL))
    elif len(mesh) > 1 and [*mesh][-1] in axes:
        model = [*mesh][-1]
    plain_axes = tuple(axis for axis in axes if axis not in (expert, stage, context, model))
    batch_axes = (*plain_axes, *filter(None, (expert, stage)))
    return Roles(batch_axes, plain_axes[-1:], expert, stage, context, model)


def _list_assignments(
    named_program: NamedProgram, mesh: dict[str, int], fixed: Fixed, pruned: collections.Counter[str]
) -> Iterator[Candidate]:
    """Yields the candidates of a mesh."""
    roles = _find_roles(mesh)
    if not _list_mesh_axes(fixed.compute, fixed.parameters) <= set(mesh):
        pruned[_LACKING] += 1
        return
    layer_names = _list_layer_names(named_program, fixed)
    for compute in _list_compute_mappings(named_program, mesh, roles, fixed, pruned):
        if reason := _find_obstacle(named_program, named_program.arrays, compute, mesh):
            pruned[reason] += 1
            continue
        layers = tuple(name for name in layer_names if compute.get(name))
        schedules: list[dict[str, int]] = [{}]
        if layers:
            schedules = _list_microbatches(named_program, mesh, compute, compute[layers[0]], fixed)
            if not schedules:
                pruned[_INDIVISIBLE] += 1
        for parameters in _list_parameter_mappings(named_program, mesh, compute, roles, fixed, pruned):
            if fixed.mesh is None and not _uses_every_mesh_axis(mesh, compute, parameters):
                pruned[_UNUSED] += 1
                continue
            for microbatches in schedules:
                yield Candidate(
                    mesh,
                    drop_unsharded(compute),
                    drop_unsharded(parameters),
                    layers=layers,
                    microbatches=microbatches,
                )


def _list_microbatches(
    named_program: NamedProgram, mesh: Mapping[str, int], compute: Assignment, stage_axes: MeshAxes, fixed: Fixed
) -> list[dict[str, int]]:
    """Returns into how many microbatches stages may divide the batch, the axis that is over their mesh axes outside."""
    if fixed.microbatches and fixed.mesh is not None:  # if they cannot be, the compiler says why
        return [dict(fixed.microbatches)]
    shard_counts = {
        name: math.prod(mesh[axis] for axis in compute.get(name, ()) if axis not in stage_axes)
        for name in fixed.microbatches or _list_example_names(named_program)
    }
    if not shard_counts:
        return []
    name = max(shard_counts, key=lambda name: ({*stage_axes} <= {*compute.get(name, ())}, shard_counts[name]))
    stages = math.prod(mesh[axis] for axis in stage_axes)
    counts = [*fixed.microbatches.values()] or [count * stages for count in _MICROBATCHES]
    sizes = named_program.sizes[name]
    return [
        {name: count}
        for count in counts
        if count >= stages and not any(size % (count * shard_counts[name]) for size in sizes)
    ]


def _list_example_names(named_program: NamedProgram) -> list[str]:
    """Returns the axes of the data that layers pass on and do not mix along, as attention does along positions."""
    carried = {name for shape in named_program.carried for name in shape.names}
    return [name for name in named_program.data_names if name in carried - named_program.mixed]


def _find_obstacle(
    named_program: NamedProgram, arrays: frozenset[frozenset[str]], mapping: Assignment, mesh: Mapping[str, int]
) -> str | None:
    """Returns why a mapping cannot shard arrays with these names; None if it can."""
    for array in arrays:
        used_axes = [axis for name in array for axis in mapping.get(name, ())]
        if len(used_axes) != len(set(used_axes)):
            return _SHARED
    for name, mesh_axes in mapping.items():
        if obstacle := _find_remainder(named_program, name, math.prod(mesh[axis] for axis in mesh_axes)):
            return obstacle
    return None


def _find_remainder(named_program: NamedProgram, name: str, count: int) -> str | None:
    """Returns why an axis cannot be divided by so many devices; None if it can."""
    is_divisible = not any(size % count for size in named_program.sizes.get(name, ()))
    return None if is_divisible else f"{name!r} is not divisible by its mesh axes"


def _list_compute_mappings(
    named_program: NamedProgram,
    mesh: Mapping[str, int],
    roles: Roles,
    fixed: Fixed,
    pruned: collections.Counter[str],
) -> Iterator[Assignment]:
    """Yields mappings for computing: a data axis over the axes of the batch, and axes of different arrays over `model`.

    Layers are over the axis of stages, each axis that may be is over that of experts, and each other axis of the data
    over that of contexts.
    """
    names = (*named_program.parameter_names, *named_program.data_names)
    free_names = [name for name in names if name not in named_program.looped and name not in fixed.compute]
    batch_names: list[str | None] = [
        name for name in named_program.data_names if name in free_names and roles.batch_axes
    ]
    layer_names = _list_layer_names(named_program, fixed)
    if roles.stage is not None and layer_names:
        batch_names = [name for name in batch_names if name in _list_example_names(named_program)]
    if not batch_names or _list_mesh_axes(fixed.compute) & set(roles.batch_axes):
        batch_names.insert(0, None)
    base = dict(fixed.compute)
    if roles.stage is not None and roles.stage not in _list_mesh_axes(base):
        base |= {name: (roles.stage,) for name in layer_names if name not in base}
    expert_names: list[str | None] = [None]
    if roles.expert is not None and roles.expert not in _list_mesh_axes(base):
        expert_names = [name for name in named_program.shared_names if name in free_names] or [None]
    has_context = roles.context is not None and roles.context not in _list_mesh_axes(base)
    for batch_name, expert_name in itertools.product(batch_names, expert_names):
        remaining_names = [name for name in free_names if name not in (batch_name, expert_name)]
        context_names = [name for name in remaining_names if name in named_program.data_names and has_context]
        if batch_name is not None:
            # Two axes of the data that change places are the same on the mesh whose sizes change places.
            earlier = named_program.data_names[: named_program.data_names.index(batch_name)]
            remaining_names = [name for name in remaining_names if name not in earlier]
            if fixed.mesh is None:
                context_names = [name for name in context_names if name not in earlier]
        if not roles.batch_axes:
            remaining_names = [name for name in remaining_names if name in named_program.parameter_names]
        for context_name in context_names or [None]:
            mapping = dict(base)
            if batch_name is not None:
                mapping[batch_name] = roles.batch_axes
            if expert_name is not None:
                mapping[expert_name] = (str(roles.expert),)
            if context_name is not None:
                mapping[context_name] = (str(roles.context),)
            model_names: list[str] = []
            for name in remaining_names if roles.model else []:
                if (obstacle := _find_remainder(named_program, name, mesh[str(roles.model)])) is not None:
                    pruned[obstacle] += 1
                elif name != context_name:
                    model_names.append(name)
            model_sets = _list_apart(model_names, named_program.arrays)
            if not model_sets or roles.model in _list_mesh_axes(fixed.compute, fixed.parameters):
                model_sets.insert(0, ())
            for names in model_sets:
                yield mapping | {name: (str(roles.model),) for name in names}


def _list_parameter_mappings(
    named_program: NamedProgram,
    mesh: Mapping[str, int],
    compute: Assignment,
    roles: Roles,
    fixed: Fixed,
    pruned: collections.Counter[str],
) -> list[Assignment]:
    """Returns mappings between steps: that for computing, alone and with further axes over that of storage.

    If no parameter is sharded over the mesh axes of further axes of the data, such as positions, they store these, too.
    On meshes with stages, experts or contexts there is the mapping alone that stores least on a device.
    """
    base = {**compute, **fixed.parameters}
    data_axes = _list_mesh_axes({name: compute.get(name, ()) for name in named_program.data_names})
    used_axes = _list_mesh_axes({name: base.get(name, ()) for name in named_program.parameter_names})
    further_axes = tuple(sorted(data_axes - used_axes - {*roles.batch_axes}))
    mappings = [base]
    for mesh_axes in dict.fromkeys((roles.storage_axes, (*roles.storage_axes, *further_axes))):
        free = _list_unsharded(named_program, base, mesh_axes, fixed)
        sets = _list_largest_apart(free, named_program.stored_arrays) if mesh_axes else []
        for names in sets or [()]:
            parameters = {**base, **dict.fromkeys(names, mesh_axes)}
            # What neither experts nor layers have is stored over their mesh axes, too.
            for axis in filter(None, (roles.expert, roles.stage)):
                free = _list_unsharded(named_program, parameters, (axis,), fixed)
                free = [name for name in free if _find_remainder(named_program, name, mesh[axis]) is None]
                further_sets = _list_largest_apart(free, named_program.stored_arrays)
                parameters |= dict.fromkeys(max(further_sets, key=len, default=()), (axis,))
            if parameters not in mappings:
                mappings.append(parameters)
    possible: list[Assignment] = []
    for mapping in mappings:
        if reason := _find_obstacle(named_program, named_program.stored_arrays, mapping, mesh):
            pruned[reason] += 1
        else:
            possible.append(mapping)
    if possible and fixed.mesh is None and (roles.stage or roles.expert or roles.context):  # to have fewer
        possible = [min(possible, key=lambda mapping: _count_stored_elements(named_program, mesh, mapping))]
    return possible


def _count_stored_elements(named_program: NamedProgram, mesh: Mapping[str, int], mapping: Assignment) -> float:
    """Returns how many elements of arguments a device stores."""
    total = 0.0
    for leaf in named_program.leaves:
        axes = {axis for name, _ in leaf.dims for axis in mapping.get(name, ())}
        total += math.prod(leaf.sizes) / math.prod(mesh[axis] for axis in axes)
    return total


def _list_unsharded(named_program: NamedProgram, mapping: Assignment, mesh_axes: MeshAxes, fixed: Fixed) -> list[str]:
    """Returns the axes of parameters that a mapping does not shard, and that share no array with these mesh axes."""
    sharded = {name for name, name_axes in mapping.items() if set(mesh_axes) & set(name_axes)}
    # An array has each mesh axis once.
    beside_sharded = {name for array in named_program.stored_arrays if sharded & array for name in array}
    unavailable = {*named_program.looped, *fixed.parameters, *beside_sharded}
    names = named_program.parameter_names
    return [name for name in names if not mapping.get(name) and name not in unavailable]


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
