"""The model by which candidates are screened before any of them is compiled.

Computing is a roofline: each product takes the longer of its floating-point operations at the peak of the device and
its operands and result at the bandwidth of the memory (Williams, Waterman and Patterson, "Roofline", 2009). Collectives
take what `LinkModel` says. Gathers of parameters and sums of gradients run beside computing; sums of activations and
reshards are waited for. The bytes of arguments are exact.

Stages compute in each turn of their schedule, also in those of the bubble, and wait for the stage before. They gather
their parameters before the first turn, and add up gradients after the last one.
"""

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from ...training._policy import Policy
from .._machine._hardware import Hardware
from .._plan._candidate import Candidate, Evaluation
from .._program._collectives import MeshAxes, count_sent_bytes
from .._program._named_program import Dim, NamedProgram, NamedShape, Product, Sum
from .._step_time._link_model import LinkModel
from .._step_time._step_time import ERRORS, StepTime, hide_sending
from ._step_variants import StepVariant


class Prospect(NamedTuple):
    """The estimate of a candidate for a step.

    Attributes:
        estimate: The estimate.
        variant: The step.
        is_likely_to_fit: Whether `held_bytes` fit into the memory of a device.
    """

    estimate: Evaluation
    variant: StepVariant
    is_likely_to_fit: bool

    @property
    def held_bytes(self) -> int:
        """Most of what a step holds on a device: its arguments, and what its loops save."""
        return self.estimate.bytes + self.estimate.saved_bytes

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """The key that sorts prospects, the most promising first."""
        estimate = self.estimate
        # Those that do not fit come last, the smallest of them first.
        oversize = 0 if estimate.fits else estimate.bytes
        return oversize, not self.is_likely_to_fit, estimate.cost, estimate.candidate.key


class Screening:
    """Estimates candidates for one step on one machine.

    Args:
        variant: The step.
        hardware: The devices.
        make_link_model: Returns the model of the links of a candidate's mesh.
    """

    def __init__(
        self, variant: StepVariant, hardware: Hardware, make_link_model: Callable[[Candidate], LinkModel]
    ) -> None:
        self._variant, self._hardware, self._make_link_model = variant, hardware, make_link_model

    def screen(self, candidate: Candidate) -> Prospect:
        """Returns the estimate of a candidate, and whether it is likely to fit."""
        named_program = self._variant.named_program
        memory: collections.Counter[str] = collections.Counter()
        state_bytes = 0  # those on the host
        for group, shape in self._variant.arguments:
            size = int(_count_bytes(shape, candidate, candidate.parameters))
            if group == "optimizer state" and candidate.has_offloaded_state:
                state_bytes += size
            else:
                memory[group] += size
        argument_bytes = sum(memory.values())

        # A step reads its state and writes the new one, which takes as long whatever else it computes.
        stored = [(named_program.leaves[leaf], 1) for leaf in named_program.read]
        moved = sum(
            count * _count_bytes(shape, candidate, candidate.parameters)
            for shape, count in (*stored, *named_program.written.items())
        )
        computing = moved / self._hardware.hbm_bandwidth
        offloaded = [
            count * _count_bytes(shape, candidate, candidate.compute)
            for shape, count in named_program.offloaded.items()
        ]
        computing += 2 * sum(offloaded) / self._hardware.hbm_bandwidth  # out of the memory and back into it
        traffic = _Traffic(candidate, self._make_link_model(candidate), named_program, self._variant.gather_policy)
        for product, runs in named_program.products.items():
            computing += runs * _estimate_product(product, candidate, self._hardware)
            traffic.add_operands(product, runs)
        for reduction, runs in named_program.sums.items():
            traffic.add_sum(reduction, runs)
        if candidate.layers:
            traffic.add_stages()
        for (source, target), runs in named_program.reshards.items():
            traffic.add_reshard(source, target, runs)
        waiting, hidden = hide_sending(computing, traffic.waiting, traffic.hidden)
        host = 2 * max(sum(offloaded) / self._hardware.host_bandwidth - computing, 0.0)
        host += 2 * state_bytes / self._hardware.host_bandwidth  # there and back, when all else is computed
        time = StepTime(computing, 0.0, waiting, hidden, host, "flops", ERRORS["flops"])
        fits = argument_bytes <= self._hardware.hbm_available
        saved_bytes = int(count_saved_bytes(named_program, candidate))
        estimate = Evaluation(
            candidate,
            "screened",
            fits,
            dict(memory),
            dict(traffic.sent),
            time,
            saved_bytes=saved_bytes,
            tokens=self._variant.tokens,
            samples=self._variant.samples,
            model_flops=self._variant.model_flops,
            sequences=self._variant.sequences,
        )

        return Prospect(estimate, self._variant, argument_bytes + saved_bytes <= self._hardware.hbm_available)


class _Traffic:
    """The collectives of a candidate: the seconds waited for, those beside computing, and the bytes sent."""

    def __init__(
        self, candidate: Candidate, links: LinkModel, named_program: NamedProgram, gather_policy: Policy
    ) -> None:
        self._candidate, self._links, self._named_program = candidate, links, named_program
        self._gather_policy = gather_policy
        self.waiting: dict[MeshAxes, float] = {}
        self.hidden: dict[MeshAxes, float] = {}
        self.sent: collections.Counter[MeshAxes] = collections.Counter()

    def add_operands(self, product: Product, runs: int) -> None:
        """Adds the gathers of the parameters of a product."""
        compute = self._candidate.compute
        for operand, names in zip(product.operands, product.gathered_names, strict=True):
            # Axes that the product needs whole are gathered when it runs, and parameters during the product before it.
            whole = tuple(axis for name in names for axis in compute.get(name, ()))
            size = _count_turns(self._candidate, product.result) * _count_bytes(operand, self._candidate, compute)
            self._add("all-gather", size, whole, runs, self.waiting)
            if operand.origin is not None:
                parameter = self._named_program.leaves[operand.origin]
                if _is_in_stages(parameter, self._candidate):  # gathered once, see `add_stages`
                    continue
                # The operand may be a part of the parameter, such as that of one layer; it is sharded as all of it is.
                size = self._find_gathered_itemsize(parameter, operand.itemsize) * math.prod(operand.sizes)
                size /= _count_shards_of(parameter.dims, self._candidate, compute)
                self._add("all-gather", size, self._list_gathered_axes(parameter), runs, self.hidden)

    def add_sum(self, reduction: Sum, runs: int) -> None:
        """Adds the reduce-scatter of a sum over mesh axes of its result, and the all-reduce over the other ones."""
        compute = self._candidate.compute
        summed = _list_mesh_axes(reduction.reduced, compute)
        is_in_stages = _is_in_stages(reduction.result, self._candidate)
        if is_in_stages:  # whose layers no other stage has
            summed = tuple(axis for axis in summed if axis not in self._candidate.stage_axes)
        is_gradient = any(name in self._named_program.data_names for name, _ in reduction.reduced)
        result_mapping = self._candidate.parameters if is_gradient else compute
        scattered = tuple(axis for axis in _list_mesh_axes(reduction.result.dims, result_mapping) if axis in summed)
        replicated = tuple(axis for axis in summed if axis not in scattered)
        size = _count_bytes(reduction.result, self._candidate, compute)
        if is_gradient:  # the size is that of computing, which does not shard it over these mesh axes
            size /= self._count_shards(scattered)
        else:
            size *= _count_turns(self._candidate, reduction.result)
        seconds = self.hidden if is_gradient and not is_in_stages else self.waiting
        self._add("reduce-scatter", size, scattered, runs, seconds)
        self._add("all-reduce", size, replicated, runs, seconds)

    def add_reshard(self, source: NamedShape, target: NamedShape, runs: int) -> None:
        """Adds the gather of an array whose dimensions become whole."""
        compute = self._candidate.compute
        gathered = tuple((name, size) for name, size in source.dims if name not in target.names)
        remaining = _list_mesh_axes(target.dims, compute)
        axes = tuple(axis for axis in _list_mesh_axes(gathered, compute) if axis not in remaining)
        self._add("all-gather", _count_bytes(target, self._candidate, compute), axes, runs, self.waiting)

    def add_stages(self) -> None:
        """Adds what stages gather and send: parameters, and in each turn what layers hand on."""
        candidate, mesh_axes = self._candidate, self._candidate.stage_axes
        for parameter in _list_stage_parameters(self._named_program, candidate):
            gathered = parameter._replace(itemsize=self._find_gathered_itemsize(parameter, parameter.itemsize))
            size = _count_bytes(gathered, candidate, candidate.compute)
            self._add("all-gather", size, self._list_gathered_axes(parameter), 1, self.waiting)
        within_stages = {
            name: tuple(axis for axis in axes if axis not in mesh_axes) for name, axes in candidate.compute.items()
        }
        for shape, loops in self._named_program.carried.items():
            size = _count_bytes(shape, candidate, within_stages)
            self._add("collective-permute", _count_turns(candidate) * size, mesh_axes, loops, self.waiting)
            self._add("all-reduce", size, mesh_axes, loops, self.waiting)  # all devices get what the last stage has

    def _list_gathered_axes(self, parameter: NamedShape) -> MeshAxes:
        """Returns the mesh axes along which a parameter is gathered from its shards for computing."""
        computed_axes = _list_mesh_axes(parameter.dims, self._candidate.compute)
        stored_axes = _list_mesh_axes(parameter.dims, self._candidate.parameters)
        return tuple(axis for axis in stored_axes if axis not in computed_axes)

    def _find_gathered_itemsize(self, parameter: NamedShape, itemsize: float) -> float:
        """Returns the bytes in which an element of a parameter is sent, which is that of computing or rounded."""
        dtype = self._gather_policy.find_gather_dtype([name for name, _ in parameter.dims])
        return itemsize if dtype is None else min(itemsize, jnp.dtype(dtype).itemsize)

    def _add(self, kind: str, size: float, axes: MeshAxes, runs: int, seconds: dict[MeshAxes, float]) -> None:
        if axes and size:
            seconds[axes] = seconds.get(axes, 0.0) + runs * self._links.estimate_seconds(kind, int(size), axes)
            self.sent[axes] += runs * count_sent_bytes(kind, int(size), self._count_shards(axes))

    def _count_shards(self, axes: MeshAxes) -> int:
        return math.prod(self._candidate.mesh[axis] for axis in axes)


def count_saved_bytes(named_program: NamedProgram, candidate: Candidate) -> float:
    """Returns the bytes of what loops collect: activations, which have axes of the data, and gradients.

    Stages hold activations of all turns, their parameters gathered, and gradients of these that are not added up yet.
    """
    total = 0.0
    for shape, count in named_program.saved.items():
        if shape.names & {*named_program.data_names}:
            saved_shape = _drop_absent_names(shape, named_program, candidate)
            total += count * _count_turns(candidate, shape) * _count_bytes(saved_shape, candidate, candidate.compute)
        else:
            total += count * _count_bytes(shape, candidate, candidate.parameters)
    parameters = _list_stage_parameters(named_program, candidate)
    return total + 2 * sum(_count_bytes(parameter, candidate, candidate.compute) for parameter in parameters)


def _drop_absent_names(shape: NamedShape, named_program: NamedProgram, candidate: Candidate) -> NamedShape:
    """Returns the shape of what a loop saves without names whose axes it lacks.

    What a function of shards saves has the names of all arguments of that, with size 1. Names of parameters, such as
    of experts, divide it only if it has a dimension of their size. Where others share the mesh axes of such a name,
    each device has what all devices along these have.
    """
    sizes = {size for name, size in shape.dims if not name}
    absent_names = {
        name
        for name, size in shape.dims
        if size == 1 and name in named_program.parameter_names and not named_program.sizes[name] & sizes
    }
    whole_axes = {axis for name in absent_names for axis in candidate.compute.get(name, ())}
    dims = ((name, size) for name, size in shape.dims if whole_axes.isdisjoint(candidate.compute.get(name, ())))
    return shape._replace(dims=tuple(dims)) if absent_names else shape


def _list_stage_parameters(named_program: NamedProgram, candidate: Candidate) -> list[NamedShape]:
    """Returns the parameters of layers in stages, in the element type in which products take them."""
    parameters: dict[int, NamedShape] = {}
    for product in named_program.products:
        for operand in product.operands:
            if operand.origin is not None:
                parameter = named_program.leaves[operand.origin]._replace(itemsize=operand.itemsize)
                if _is_in_stages(parameter, candidate):
                    parameters[operand.origin] = parameter
    return [*parameters.values()]


def _is_in_stages(shape: NamedShape, candidate: Candidate) -> bool:
    """Returns whether each stage has a part of an array, or of those that a loop computes one after another."""
    return not shape.names.isdisjoint(candidate.layers)


def _count_turns(candidate: Candidate, shape: NamedShape | None = None) -> float:
    """Returns how often stages compute a whole batch: more than once, since they do not use what the bubble computes.

    An array that is not in the stages is computed once.
    """
    if candidate.schedule is None or (shape is not None and not _is_in_stages(shape, candidate)):
        return 1.0
    return candidate.schedule.turns / candidate.schedule.microbatches


def _estimate_product(product: Product, candidate: Candidate, hardware: Hardware) -> float:
    """Returns the seconds in which a device computes its part of a product, stages in all turns.

    In each turn, stages read the parameters of their layers again.
    """
    shards = _count_shards_of((*product.result.dims, *product.reduced), candidate, candidate.compute)
    turns = _count_turns(candidate, product.result)
    sizes = {array: _count_bytes(array, candidate, candidate.compute) for array in (*product.operands, product.result)}
    moved = turns * sum(sizes.values())
    if candidate.schedule is not None and turns > 1:
        parameters = sum(size for array, size in sizes.items() if array.origin is not None)
        moved += (candidate.schedule.turns - turns) * parameters
    return max(turns * product.flops / shards / hardware.bf16_flops, moved / hardware.hbm_bandwidth)


def _count_bytes(shape: NamedShape, candidate: Candidate, mapping: Mapping[str, MeshAxes]) -> float:
    """Returns the bytes of an array on a device."""
    whole = shape.itemsize * math.prod(shape.sizes)
    return whole / _count_shards_of(shape.dims, candidate, mapping)


def _count_shards_of(dims: Sequence[Dim], candidate: Candidate, mapping: Mapping[str, MeshAxes]) -> int:
    return math.prod(candidate.mesh[axis] for axis in _list_mesh_axes(dims, mapping))


def _list_mesh_axes(dims: Sequence[Dim], mapping: Mapping[str, MeshAxes]) -> MeshAxes:
    """Returns the mesh axes over which dimensions are sharded, each once."""
    return tuple(dict.fromkeys(axis for name, _ in dims for axis in mapping.get(name, ())))
