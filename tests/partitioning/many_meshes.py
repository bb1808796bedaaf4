"""Arrays, mappings and meshes by chance, on up to 64 devices: a program that `test_properties.py` runs.

For each example there is a spec that JAX takes, or one of the documented errors, as the definition says. What has a
spec keeps its values where it is sharded; `tests/fuzz` computes with such arrays. Prints how many
examples there were of each kind.
"""

import collections
import json
import math
import re

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

import axonym as nym


EXAMPLES = 2000
NAMES = ("alpha", "bravo", "charlie", "delta")
MESH_AXES = ("x", "y", "z")
KINDS = (AxisType.Auto, AxisType.Explicit)
ERRORS = {
    "unknown": "which the mesh",
    "twice": "are both mapped to mesh axis",
    "uneven": "which is not divisible by mesh axis",
    "repeated": "which names a mesh axis twice",
    "mixed": "a mix that JAX does not keep",
}
MESH_SHAPES = [(64,), (8, 8), (4, 16), (16, 2), (4, 4, 4), (2, 3, 4), (1, 8), (8, 1, 2), (1,), (3,), (2, 2), (5, 3, 4)]
count: collections.Counter[str] = collections.Counter()


@st.composite
def meshes(draw):
    sizes = draw(st.sampled_from(MESH_SHAPES))
    names, kinds = MESH_AXES[: len(sizes)], tuple(draw(st.sampled_from(KINDS)) for _ in sizes)
    if draw(st.integers(0, 4)) == 0:
        return AbstractMesh(sizes, names, axis_types=kinds)
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    return Mesh(devices, names, axis_types=kinds)


@st.composite
def arrays(draw):
    names = draw(st.permutations(NAMES))[: draw(st.sampled_from([2, 1, 3, 0, 4]))]
    sizes = tuple(draw(st.sampled_from([16, 8, 1, 0, 2, 3, 4, 6, 16, 48])) for _ in names)
    return nym.NamedArray(np.arange(math.prod(sizes), dtype=np.float32).reshape(sizes) % 7, names)


several = st.permutations(MESH_AXES).map(lambda axes: axes[:2])
by_chance = st.lists(st.sampled_from([*MESH_AXES, "w"]), max_size=3)
values = st.sampled_from([None, *MESH_AXES, several, several.map(tuple), by_chance]).flatmap(
    lambda value: value if isinstance(value, st.SearchStrategy) else st.just(value)
)
entries = st.fixed_dictionaries(dict.fromkeys(NAMES[:3], values))


def expected(x, mapping, mesh):
    """Returns the shape of one part by the definition, or the errors of which one is right."""
    used, parts, wrong = collections.Counter(), [], set()
    for name, size in x.shape.items():
        axes = mapping.mesh_axes(name)
        if not set(axes) <= set(mesh.axis_names):
            wrong.add("unknown")
            continue
        number = math.prod(mesh.shape[axis] for axis in axes)
        if len({mesh.axis_types[mesh.axis_names.index(axis)] for axis in axes}) > 1:
            wrong.add("mixed")
        if size % number:
            wrong |= {"uneven"} if mapping.uneven == "error" and size != 1 else set()
            axes, number = (), 1
        used.update(axes)
        parts.append(size // number)
    if max(used.values(), default=0) > 1:
        wrong.add("twice")
    return tuple(parts), wrong


def kind_of(error):
    (kind,) = [kind for kind, text in ERRORS.items() if text in str(error)]
    count[kind] += 1
    return kind


@given(
    x=arrays(),
    entries=entries,
    uneven=st.sampled_from(["error", "replicate"]),
    mesh=meshes(),
)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def check(x, entries, uneven, mesh):
    count["examples"] += 1
    try:
        mapping = nym.AxisMapping(entries, uneven=uneven)
    except ValueError as error:
        assert kind_of(error) == "repeated"
        return
    parts, wrong = expected(x, mapping, mesh)
    try:
        sharding = nym.sharding_for_axis(x.axes, mapping, mesh)
    except ValueError as error:
        assert kind_of(error) in wrong
        with pytest.raises(ValueError, match=re.escape(str(error))):
            nym.shard(x, mapping, mesh)
        return
    assert not wrong
    assert sharding == NamedSharding(mesh, sharding.spec) and len(sharding.spec) == x.ndim
    assert sharding.shard_shape(tuple(x.shape)) == parts
    count["specs"] += 1
    if isinstance(mesh, AbstractMesh):
        shape = nym.shard(jax.eval_shape(lambda: x), mapping, mesh)
        assert shape.array.sharding == sharding
        return
    sharded = nym.shard(x, mapping, mesh)
    assert sharded.array.sharding == sharding and np.array_equal(sharded.array, x.array)
    count["sharded"] += 1


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 64)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    check()
    print(json.dumps(count))
