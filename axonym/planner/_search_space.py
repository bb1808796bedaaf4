"""The candidates of a plan: meshes that a machine has, and the mappings of named axes that a program permits.

A mesh has up to three axes: `replica` and `data`, over which the batch is sharded, and `model`. Parameters are stored
over `data` too, so that `replica` has copies of them. While computing, any set of axes that never meet in an array can
be sharded over `model`. `fixed` replaces any of these choices.
"""

import collections
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..named._axis import format_axes, suggest_name
from ._candidate import Candidate, MeshAxes
from ._named_program import NamedProgram


Assignment: TypeAlias = dict[str, MeshAxes]

REPLICA, DATA, MODEL = "replica", "data", "model"
_MEETING = "two axes of one array over one mesh axis"
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


def parse_fixed(fixed: Mapping[str, Any] | None, names: Sequence[str], devices: int) -> Fixed:
    """Returns what `fixed` of `plan` says.

    Raises:
        TypeError: If it is not a mapping of mappings.
        ValueError: If it has an unknown key or name, or a mesh that does not fit the devices.
    """
    fixed = {} if fixed is None else fixed
    if not isinstance(fixed, Mapping) or not all(isinstance(one, Mapping) for one in fixed.values()):
        raise TypeError(
            "`fixed` is a mapping such as {'mesh': {'data': 8}, 'compute': {'batch': 'data'}, 'parameters': {'embed': "
            f"'data'}}}}, not {fixed!r}"
        )
    known = ("mesh", "compute", "parameters")
    for key in fixed:
        if key not in known:
            raise ValueError(f"`fixed` has no {key!r}{suggest_name(key, known)}; it takes {', '.join(known)}")
    mesh = dict(fixed["mesh"]) if "mesh" in fixed else None
    if mesh is not None and not all(isinstance(size, int) for size in mesh.values()):
        raise TypeError(f"`fixed` has the mesh {mesh}; sizes of mesh axes are integers")
    if mesh is not None and (min(mesh.values(), default=1) < 1 or math.prod(mesh.values()) != devices):
        raise ValueError(
            f"the fixed mesh {mesh} has {math.prod(mesh.values())} devices, but there are {devices}; name all of its "
            "axes, with sizes of 1 or more"
        )
    mappings = [_parse_mapping(fixed.get(key, {}), names, mesh) for key in known[1:]]
    return Fixed(mesh, *mappings)


def list_candidates(
    program: NamedProgram, devices: int, fixed: Fixed, pruned: collections.Counter[str]
) -> list[Candidate]:
    """Returns all candidates, each once; counts those that cannot be, by the reason.

    Raises:
        ValueError: If they are too many.
    """
    found: dict[str, Candidate] = {}
    for mesh in _list_meshes(devices, fixed):
        for candidate in _list_assignments(program, mesh, fixed, pruned):
            found.setdefault(str(candidate), candidate)
            _check_candidate_count(len(found), program.parameter_names)
    return list(found.values())


def _check_candidate_count(count: int, names: Sequence[str]) -> None:
    if count > _MOST_CANDIDATES:
        raise ValueError(
            f"there are more than {_MOST_CANDIDATES:,} candidates, since most of the axes {', '.join(names)} never "
            f"meet in an array; fix some of them, such as `fixed={{'compute': {{{names[0]!r}: None}}}}`, or give axes "
            "that are to be sharded alike the same name"
        )


def explain_no_candidate(program: NamedProgram, devices: int, fixed: Fixed, pruned: collections.Counter[str]) -> str:
    """Returns why there is no candidate: what `fixed` has that cannot be, or else all reasons and the sizes of axes."""
    meshes = [*_list_meshes(devices, fixed)]
    stored = frozenset(leaf.names for leaf in program.leaves)
    between = "between steps (`compute` counts for axes that `parameters` lacks)"
    for mapping, arrays, when in (
        (fixed.compute, program.arrays, "while computing"),
        ({**fixed.compute, **fixed.parameters}, stored, between),
    ):
        texts = *_list_meetings(program, mapping, arrays, when), *_list_remainders(program, mapping, meshes)
        if texts:
            return texts[0]
    reasons = "; ".join(f"{count}: {reason}" for reason, count in pruned.items()) or "there is no axis to shard"
    mesh = f" over the mesh {format_axes(tuple(fixed.mesh), tuple(fixed.mesh.values()))}" if fixed.mesh else ""
    return f"{reasons}; the axes are {_format_named_sizes(program, program.sizes)}{mesh}; fix less, or change sizes"


def _list_meetings(
    program: NamedProgram, mapping: Mapping[str, MeshAxes], arrays: frozenset[frozenset[str]], when: str
) -> Iterator[str]:
    """Yields a sentence for each two axes of one array that are fixed over one mesh axis."""
    for (one, over), (other, others) in itertools.combinations(mapping.items(), 2):
        shared = [axis for axis in over if axis in others]
        both = [array for array in arrays if {one, other} <= array]
        if shared and both:
            array = min(both, key=lambda array: (len(array), sorted(array)))
            yield (
                f"`fixed` has {one!r} and {other!r} over mesh axis {shared[0]!r} {when}, but both are axes of one "
                f"array {_format_named_sizes(program, array)}; fix one of them over another mesh axis or to "
                "None, or rename one of them in the arrays where they meet"
            )


def _list_remainders(
    program: NamedProgram, mapping: Mapping[str, MeshAxes], meshes: Sequence[Mapping[str, int]]
) -> Iterator[str]:
    """Yields a sentence for each axis that is not divisible by the mesh axes that it is fixed over, in any mesh."""
    for name, over in mapping.items():
        shares = sorted({math.prod(mesh[axis] for axis in over) for mesh in meshes if set(over) <= set(mesh)})
        odd = [next((size for size in sorted(program.sizes.get(name, ())) if size % share), 0) for share in shares]
        if odd and all(odd):
            axes = f"mesh ax{'is' if len(over) == 1 else 'es'} {' and '.join(map(repr, over))}"
            yield (
                f"axis {name!r} has size {odd[0]}, which is not divisible by {axes} of size "
                f"{' or '.join(map(str, shares))}, as `fixed` has it; fix it over other mesh axes, to None, or change "
                "its size"
            )


def _format_named_sizes(program: NamedProgram, names: Collection[str]) -> str:
    ordered = [name for name in (*program.data_names, *program.parameter_names) if name in names]
    return format_axes(ordered, [max(program.sizes[name]) for name in ordered])


def _parse_mapping(
    mapping: Mapping[str, Any], names: Sequence[str], mesh: Mapping[str, int] | None
) -> dict[str, MeshAxes]:
    axes = tuple(mesh) if mesh is not None else (REPLICA, DATA, MODEL)
    found: dict[str, MeshAxes] = {}
    for name, over in mapping.items():
        if not isinstance(name, str):
            known = getattr(name, "name", names[0])
            raise TypeError(f"`fixed` has {name!r}; give the name of an axis, such as {known!r}")
        if name not in names:
            raise ValueError(
                f"`fixed` has the axis {name!r}, which no argument has{suggest_name(name, names)}; there are "
                f"{', '.join(names)}"
            )
        listed = () if over is None else (over,) if isinstance(over, str) else over
        if not isinstance(listed, tuple | list) or not all(isinstance(axis, str) for axis in listed):
            raise TypeError(f"`fixed` has {over!r} for {name!r}; give a mesh axis, a tuple of them, or None")
        found[name] = tuple(listed)
        if len(found[name]) != len(set(found[name])):
            raise ValueError(f"`fixed` has {name!r} over {found[name]}; give each mesh axis once")
        for axis in found[name]:
            if axis not in axes:
                raise ValueError(
                    f"`fixed` has {name!r} over {axis!r}, which is no mesh axis{suggest_name(axis, axes)}; there are "
                    f"{', '.join(axes)}{'' if mesh is not None else ', or those of a `mesh` that is fixed too'}"
                )
    return found


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
    program: NamedProgram, mesh: dict[str, int], fixed: Fixed, pruned: collections.Counter[str]
) -> Iterator[Candidate]:
    """Yields the candidates of a mesh. Of one with other names, the last of several axes has the role of `model`."""
    axes = list(mesh)
    is_searched = fixed.mesh is None
    is_known = set(mesh) <= {REPLICA, DATA, MODEL}
    tensor = (MODEL if MODEL in mesh else None) if is_known else (axes[-1] if len(axes) > 1 else None)
    tensor = tensor if mesh.get(tensor or "", 1) > 1 else None  # an axis of size 1 shards nothing
    used = {axis for part in (fixed.compute, fixed.parameters) for over in part.values() for axis in over}
    if not used <= set(mesh):
        pruned[_LACKING] += 1
        return
    batch = tuple(axis for axis in axes if axis != tensor and mesh[axis] > 1)
    for compute in _list_compute_mappings(program, batch, tensor, fixed):
        if _meet(program.arrays, compute):
            pruned[_MEETING] += 1
        elif rest := _find_undivided(program, compute, mesh):
            pruned[f"{rest!r} is not divisible by its mesh axes"] += 1
        else:
            for parameters in _list_parameter_mappings(program, compute, batch, fixed):
                if _meet(frozenset(leaf.names for leaf in program.leaves), parameters):
                    pruned[_MEETING] += 1
                elif rest := _find_undivided(program, parameters, mesh):
                    pruned[f"{rest!r} is not divisible by its mesh axes"] += 1
                elif is_searched and not _use(mesh, compute, parameters):
                    pruned[_UNUSED] += 1
                else:
                    yield Candidate(mesh, _keep(compute), _keep(parameters))


def _list_compute_mappings(
    program: NamedProgram, batch: MeshAxes, tensor: str | None, fixed: Fixed
) -> Iterator[Assignment]:
    """Yields mappings for computing: an axis of the data over `batch`, and axes that never meet over `tensor`."""
    free = [name for name in (*program.parameter_names, *program.data_names) if name not in program.looped]
    free = [name for name in free if name not in fixed.compute]
    data = [{name: batch} for name in program.data_names if name in free and batch] or [{}]
    if any(set(over) & set(batch) for over in fixed.compute.values()):
        data = [{}, *data]
    for assigned in data:
        # Two axes of the data that change places are the same on the mesh whose sizes change places.
        passed = program.data_names[: program.data_names.index(next(iter(assigned)))] if assigned else ()
        others = [name for name in free if name not in (*assigned, *passed)]
        others = others if batch else [name for name in others if name in program.parameter_names]
        sets = _list_apart(others, program.arrays) if tensor else []
        if not sets or any(tensor in over for part in (fixed.compute, fixed.parameters) for over in part.values()):
            sets = [(), *sets]
        for chosen in sets:
            yield {**fixed.compute, **assigned, **{name: (str(tensor),) for name in chosen}}


def _list_parameter_mappings(
    program: NamedProgram, compute: Assignment, batch: MeshAxes, fixed: Fixed
) -> Iterator[Assignment]:
    """Yields mappings between steps: that for computing, alone and with further axes over the last of `batch`."""
    base = {**compute, **fixed.parameters}
    yield base
    free = [name for name in program.parameter_names if not base.get(name) and name not in program.looped]
    free = [name for name in free if name not in fixed.parameters]
    arrays = frozenset(leaf.names for leaf in program.leaves)
    taken = {name for name, over in base.items() if set(over) & set(batch[-1:])}
    free = [name for name in free if not any(name in array and taken & array for array in arrays)]
    for chosen in _list_largest_apart(free, arrays) if batch else ():
        yield {**base, **{name: batch[-1:] for name in chosen}}


def _list_apart(names: Sequence[str], arrays: frozenset[frozenset[str]]) -> list[tuple[str, ...]]:
    """Returns the sets of names of which no two are in one array."""
    meets = _list_met_names(names, arrays)
    found: list[tuple[str, ...]] = [()]
    for name in names:
        found += [(*chosen, name) for chosen in found if not meets[name] & set(chosen)]
        _check_candidate_count(len(found), names)
    return found[1:]


def _list_largest_apart(names: Sequence[str], arrays: frozenset[frozenset[str]]) -> list[tuple[str, ...]]:
    """Returns the sets of names of which no two are in one array, those alone that no other set contains.

    Source: Bron and Kerbosch, "Algorithm 457: finding all cliques of an undirected graph", 1973, with a pivot.
    """
    meets = _list_met_names(names, arrays)
    found: list[tuple[str, ...]] = []

    def extend(chosen: tuple[str, ...], free: list[str], passed: list[str]) -> None:
        if not free and not passed:
            found.append(chosen)
            _check_candidate_count(len(found), names)
            return
        pivot = min((*free, *passed), key=lambda name: len(meets[name].intersection(free)))
        for name in [one for one in free if one in meets[pivot]]:
            extend((*chosen, name), *([one for one in part if one not in meets[name]] for part in (free, passed)))
            free, passed = [one for one in free if one != name], [*passed, name]

    if names:
        extend((), [*names], [])
    return found


def _list_met_names(names: Sequence[str], arrays: frozenset[frozenset[str]]) -> dict[str, frozenset[str]]:
    """Returns for each name those that are in an array with it, and itself."""
    return {name: frozenset([name]).union(*(one for one in arrays if name in one)) for name in names}


def _meet(arrays: frozenset[frozenset[str]], mapping: Assignment) -> bool:
    """Returns whether an array has two axes over one mesh axis."""
    for array in arrays:
        used = [axis for name in array for axis in mapping.get(name, ())]
        if len(used) != len(set(used)):
            return True
    return False


def _find_undivided(program: NamedProgram, mapping: Assignment, mesh: Mapping[str, int]) -> str | None:
    """Returns an axis that is not divisible by its mesh axes; None if all of them are."""
    shares = {name: math.prod(mesh[axis] for axis in over) for name, over in mapping.items()}
    undivided = (name for name in shares if any(size % shares[name] for size in program.sizes.get(name, ())))
    return next(undivided, None)


def _use(mesh: Mapping[str, int], compute: Assignment, parameters: Assignment) -> bool:
    """Returns whether each mesh axis shards something, and `replica` and `data` differ."""
    used = {axis for mapping in (compute, parameters) for over in mapping.values() for axis in over}
    stored = {axis for name, over in parameters.items() if over != compute.get(name) for axis in over}
    return (used == set(mesh) and (REPLICA not in mesh or DATA in stored)) or set(mesh) == {DATA}


def _keep(mapping: Assignment) -> dict[str, MeshAxes]:
    """Returns the mapping without the axes that are not sharded, in the order of their names."""
    return {name: mapping[name] for name in sorted(mapping) if mapping[name]}
