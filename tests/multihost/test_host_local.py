"""Parts of a batch that each process has read, and the array of all: with one process, and with several real ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.processes import run


def rows(**sizes):
    """A named array of NumPy with different elements."""
    return nym.NamedArray(np.arange(np.prod(list(sizes.values()))).reshape(*sizes.values()), tuple(sizes))


def test_the_part_of_one_process_is_the_entire_array(mesh):
    given = {"rows": rows(batch=8, pos=3), "step": np.int32(4), "name": "green-fox"}
    got = nym.host_local_to_global(given, {"batch": ("data", "model")})
    assert got["rows"].names == ("batch", "pos") and got["rows"].sharding.spec == jax.P(("data", "model"), None)
    assert got["rows"].sharding.mesh == mesh and got["name"] == "green-fox"
    assert got["step"].sharding.spec == jax.P() and int(got["step"]) == 4
    back = nym.global_to_host_local(got)
    assert isinstance(back["rows"].array, np.ndarray) and back["rows"].names == ("batch", "pos")
    np.testing.assert_array_equal(back["rows"].array, given["rows"].array)
    assert back["step"] == 4 and back["name"] == "green-fox"


def test_the_active_mapping_and_the_given_mesh_are_used(auto_mesh):
    with nym.axis_mapping(batch="data"):
        got = nym.host_local_to_global(rows(batch=4), mesh=auto_mesh)
    assert got.sharding == jax.NamedSharding(auto_mesh, jax.P("data"))


def test_a_part_of_the_tree_may_have_its_own_mapping(mesh):
    given = (rows(batch=4), nym.ShardedBy(rows(batch=4), {"batch": "model"}))
    one, other = nym.host_local_to_global(given, {"batch": "data"})
    assert (one.sharding.spec, other.tree.sharding.spec) == (jax.P("data"), jax.P("model"))


def test_shapes_become_global_shapes(mesh):
    given = nym.NamedArray(jax.ShapeDtypeStruct((4, 2), jnp.int32), ("batch", "pos"))
    got = nym.host_local_to_global(given, {"batch": "data"})
    assert got.array == jax.ShapeDtypeStruct((4, 2), jnp.int32, sharding=jax.NamedSharding(mesh, jax.P("data", None)))


def test_random_keys_are_parts_too(mesh):
    keys = nym.NamedArray(jax.random.split(jax.random.key(3), 4), "batch")
    got = nym.host_local_to_global((keys, jax.random.key(5)), {"batch": "data"})
    assert got[0].sharding.spec == jax.P("data") and got[0].dtype == keys.dtype
    back = nym.global_to_host_local(got)
    for one, other in zip(jax.tree.leaves(back), (keys.array, jax.random.key(5)), strict=True):
        np.testing.assert_array_equal(jax.random.key_data(one), jax.random.key_data(other))


def test_integers_of_64_bits_keep_their_values_or_are_refused(mesh):
    fitting = np.array([2**31 - 1, -(2**31)] * 4)
    got = nym.host_local_to_global({"x": nym.NamedArray(fitting, "batch")}, {"batch": "data"})["x"]
    assert got.dtype == jnp.int32 and np.asarray(got).tolist() == fitting.tolist()
    said = r"^\['x'\]: an array of shape \(8,\) has int64 elements from 7 to 1099511627783, which do not fit int32;"
    with pytest.raises(ValueError, match=said):
        nym.host_local_to_global({"x": nym.NamedArray(np.array([7] * 7 + [2**40 + 7]), "batch")}, {"batch": "data"})


NYM: Any = nym  # without types, because every call here is wrong
ROWS = rows(batch=8)
WRONG_CALLS = [
    (
        lambda mesh: NYM.host_local_to_global(ROWS, mesh, {}),
        TypeError,
        r"A mapping goes from names .*, not the mesh \(d",
    ),
    (
        lambda mesh: NYM.host_local_to_global({}, ROWS, mesh),
        TypeError,
        r"A mapping goes from .*, not an array of shape",
    ),
    (
        lambda mesh: NYM.host_local_to_global(ROWS, {}, 3),
        TypeError,
        "`mesh` is a mesh, such as `axonym.create_mesh` returns, not 3",
    ),
    (
        lambda mesh: NYM.host_local_to_global(ROWS, {}, mesh, check="x"),
        TypeError,
        "`check` must be True or False, not 'x'",
    ),
    (
        lambda mesh: NYM.host_local_to_global(nym.NamedArray(np.array(["a"] * 8), "batch"), {}, mesh),
        ValueError,
        r"an array of shape \(8,\) has dtype <U1, which JAX lacks; convert it with `astype` first",
    ),
    (
        lambda mesh: NYM.host_local_to_global(nym.NamedArray(np.ones(8, ">f4"), "batch"), {}, mesh),
        ValueError,
        "has dtype >f4, which JAX lacks; convert it with `astype` first",
    ),
]


@pytest.mark.parametrize("case", range(len(WRONG_CALLS)))
def test_wrong_arguments_are_errors_that_name_them(auto_mesh, case):
    call, error, said = WRONG_CALLS[case]
    with pytest.raises(error, match=said):
        call(auto_mesh)


def test_an_array_without_names_is_refused_with_its_place(mesh):
    with pytest.raises(ValueError, match=r"\['x'\]: an array of shape \(8, 3\) has no names, .* name them"):
        nym.host_local_to_global({"x": np.zeros((8, 3))}, {"batch": "data"})


@pytest.mark.parametrize("uneven", ["error", "replicate"])
def test_a_size_that_does_not_fit_is_as_in_shard(mesh, uneven):
    mapping = nym.AxisMapping({"batch": "data"}, uneven=uneven)
    if uneven == "replicate":
        assert nym.host_local_to_global(rows(batch=6), mapping).sharding.spec == jax.P(None)
        return
    with pytest.raises(ValueError, match="size 6, which is not divisible by mesh axis 'data' of size 4"):
        nym.host_local_to_global(rows(batch=6), mapping)


def test_a_mapping_and_a_mesh_with_devices_are_needed(auto_mesh):
    with pytest.raises(ValueError, match="`host_local_to_global` needs a mapping; pass one"):
        nym.host_local_to_global(rows(batch=4), mesh=auto_mesh)
    with pytest.raises(ValueError, match="`host_local_to_global` needs a mesh; set one with"):
        nym.host_local_to_global(rows(batch=4), {"batch": "data"})
    with pytest.raises(ValueError, match="needs a mesh with devices, not an abstract one"):
        nym.host_local_to_global(rows(batch=4), {"batch": "data"}, auto_mesh.abstract_mesh)


def test_within_a_traced_function_there_are_no_parts(auto_mesh):
    with jax.set_mesh(auto_mesh):
        with pytest.raises(ValueError, match="needs a mesh with devices; call it outside of traced functions"):
            jax.eval_shape(lambda x: nym.host_local_to_global(x, {"batch": "data"}), nym.ones({"batch": 4}))
        with pytest.raises(ValueError, match="has no parts to return inside a traced function"):
            jax.eval_shape(nym.global_to_host_local, nym.ones({"batch": 4}))


PARTS = """
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

start()
DEVICES = jax.device_count()
MAPPINGS = [
    {"batch": "data"}, {"batch": "model"}, {"batch": ("data", "model")}, {"batch": ("model", "data")}, {},
    {"batch": "data", "embed": "model"}, {"embed": "data"},
]
rows = np.random.default_rng(0).normal(size=(8, 4, 3)).astype(np.float32)

def gathered(x):
    return multihost_utils.process_allgather(x.array, tiled=True)

# The processes are along the mesh axis `data` of one mesh and along `model` of the other.
MESHES = [((PROCESSES, DEVICES // PROCESSES), ("data", "model")), ((4, DEVICES // 4), ("model", "data"))]
for (sizes, names), kind in zip(MESHES, ("auto", "explicit"), strict=True):
    mesh = nym.create_mesh(sizes, names, axis_types=kind)
    with jax.set_mesh(mesh):
        for mapping in MAPPINGS:
            sharding = nym.sharding_for_axis(("batch", "embed", "pos"), mapping)
            whole = nym.NamedArray(
                jax.make_array_from_callback(rows.shape, sharding, lambda at: rows[at]), ("batch", "embed", "pos")
            )
            own = nym.global_to_host_local({"x": whole})
            assert isinstance(own["x"].array, np.ndarray) and own["x"].names == whole.names
            # What the own devices hold, by JAX's account.
            held = [sharding.addressable_devices_indices_map(rows.shape)[d] for d in sharding.addressable_devices]
            for dim in range(3):
                mine = sorted({at for index in held for at in np.arange(rows.shape[dim])[index[dim]]})
                assert own["x"].array.shape[dim] == len(mine)
                if dim == 0 and own["x"].array.shape[1:] == rows.shape[1:]:
                    np.testing.assert_array_equal(own["x"].array, rows[mine])
            back = nym.host_local_to_global(own, mapping, check=True, timeout=30)["x"]
            assert back.sharding == sharding and back.shape == whole.shape, (mapping, back.shape)
            again = nym.global_to_host_local(back)
            np.testing.assert_array_equal(again.array, own["x"].array)
    np.testing.assert_array_equal(gathered(back), rows)

mesh = nym.create_mesh((PROCESSES, DEVICES // PROCESSES), ("data", "model"))
with jax.set_mesh(mesh), nym.axis_mapping(batch="data"):
    part = nym.NamedArray(np.full((2, 3), PROCESS), ("batch", "pos"))
    whole = nym.host_local_to_global(part)
    assert whole.shape == {"batch": 2 * PROCESSES, "pos": 3}
    assert gathered(whole)[:, 0].tolist() == sorted([*range(PROCESSES)] * 2)
    with jax.set_mesh(None):
        own = nym.NamedArray(jnp.full((2, 3), PROCESS), ("batch", "pos"))
        keys = nym.NamedArray(jax.random.split(jax.random.key(PROCESS), 2), "batch")
    assert nym.host_local_to_global(own).shape == whole.shape
    has(raised(ValueError, nym.host_local_to_global, nym.NamedArray(jnp.full((2, 3), PROCESS), ("batch", "pos"))),
        "(batch: 2, pos: 3) is an array of all processes already, like every array that JAX makes", "NumPy")
    assert nym.host_local_to_global(jax.ShapeDtypeStruct((), int)).sharding.spec == jax.P()

    # Random keys, a step, and leaves that are not arrays.
    key = jax.random.key(3)
    both = nym.host_local_to_global((keys, key, 4, "name"))
    assert both[0].shape == {"batch": 2 * PROCESSES} and both[2:] == (4, "name")
    own = nym.global_to_host_local(both)
    with jax.set_mesh(None):
        assert (jax.random.key_data(own[0].array) == jax.random.key_data(keys.array)).all()
    assert (jax.random.key_data(own[1]) == jax.random.key_data(key)).all()

    has(raised(ValueError, nym.host_local_to_global, {"x": whole}), f"['x']: (batch: {2 * PROCESSES}, pos: 3) is")
    third = nym.NamedArray(np.zeros((3, 5)), ("pos", "batch"))
    assert nym.host_local_to_global(third).shape == {"pos": 3, "batch": 5 * PROCESSES}
    with nym.axis_mapping({"batch": ("data", "model")}):
        has(raised(ValueError, nym.host_local_to_global, [third]), "[0]: axis 'batch' has size 5 in this process "
            f"and {5 * PROCESSES} in total, which is not divisible by mesh axis 'data' of size {PROCESSES} x "
            f"'model' of size {8 // PROCESSES}; the next size in a process that fits is {6 if PROCESSES == 4 else 8}")
    with nym.axis_mapping({"batch": ("data", "model")}, uneven="replicate"):
        has(raised(ValueError, nym.host_local_to_global, third), "axis 'batch' has size 5 in this process")

    # The check finds differences that would go unnoticed, and names the leaf once.
    other, odd = (0, True) if PROCESS % 2 else (1, False)

    def differing(tree):
        return raised(ValueError, nym.host_local_to_global, tree, check=True, timeout=30)

    text = differing({"x": nym.NamedArray(np.zeros(2 + odd), "batch")})
    assert text == (f"['x']: this process, {PROCESS}, has float64 (batch: {2 + odd}) and process {other} float64 "
        f"(batch: {3 - odd}); pass arrays of the same sizes in all processes, and pad a short last part")
    text = differing(nym.NamedArray(np.zeros(4, "i4" if odd else "f4"), "batch"))
    kinds = ["int32", "float32"] if odd else ["float32", "int32"]
    assert text == (f"this process, {PROCESS}, has {kinds[0]} (batch: 4) and process {other} {kinds[1]} "
        "(batch: 4); pass arrays of the same dtype in all processes")
    has(differing([nym.NamedArray(np.zeros(4), "pos" if odd else "batch")]), f"[0]: this process, {PROCESS}, has ",
        f" and process {other} ", "(pos: 4)", "(batch: 4)", "; pass arrays with the same names in all processes")
    places = ["['y']", "missing"] if odd else ["missing", "['y']"]
    text = differing({"x": part, "y": part} if odd else {"x": part})
    assert text == (f"array 2 of the tree is {places[0]} in this process, {PROCESS}, and {places[1]} in process "
        f"{other}; pass trees of the same structure in all processes")

    # Processes with different mappings or meshes would make different arrays.
    other_mesh = nym.create_mesh((DEVICES, 1), ("data", "model"))
    for different in ({}, {"batch": ("data", "model")}), (mesh, other_mesh):
        options = {"mapping": {"batch": "data"}, "mesh": mesh, "check": True, "timeout": 30}
        options["mesh" if different[0] is mesh else "mapping"] = different[odd]
        text = raised(ValueError, nym.host_local_to_global, {"x": nym.NamedArray(np.zeros(8), "batch")}, **options)
        has(text, f"['x']: this process, {PROCESS}, makes (batch: ", " on mesh (data: ",
            f" and process {other} (batch: ", "; use the same mapping and mesh in all processes")
        assert text.count(" with P(") == 2

    # A process that cannot provide its part reports that at the check, and the next check is in step.
    with nym.axis_mapping({"batch": ("data", "model")}):
        text = differing({"x": nym.NamedArray(np.zeros(4 if PROCESS else 3), "batch")})
    told = "process 0 cannot provide its part, so no array is made; it raises ValueError: "
    assert text.startswith(told * (PROCESS > 0) + "['x']: axis 'batch' has size 3 in this process and")
    with nym.axis_mapping({"batch": "data"} if PROCESS else {"batch": "nowhere"}):
        text = differing(part)
    assert text.startswith("process 0 cannot") == (PROCESS > 0) and "nowhere" in text
    text = raised(ValueError, nym.host_local_to_global, nym.NamedArray(np.full(3, PROCESS), "pos"), check=True)
    assert text == "processes 0 and 1 have different data in the same part of int64 (pos: 3)"
    nym.host_local_to_global(nym.NamedArray(np.full(3, PROCESS), "batch"), check=True)

# A mesh on which the processes share some parts but not others, and a mesh without devices of a process.
shuffled = np.array(jax.devices())
shuffled = np.concatenate([shuffled[:1], shuffled[2:], shuffled[1:2]]).reshape(-1, 2)
odd = jax.sharding.Mesh(shuffled, ("data", "model"))
text = raised(ValueError, nym.host_local_to_global, part, {"batch": "data"}, odd)
has(text, "axis 'batch' is sharded over", "processes share some of their parts but not others (process 0: [")
first = nym.create_mesh((2,), ("data",), devices=jax.devices()[:2])
sharding = jax.NamedSharding(first, jax.P())
if PROCESS:
    for tree in (part, np.int32(3)):
        for mapping in ({"batch": "data"}, {}):
            assert raised(ValueError, nym.host_local_to_global, tree, mapping, first) == (
                f"process {PROCESS} has no device of the mesh (data: 2), so it has no part of any array on it")
    for shape in ((), (4, 2)):
        there = jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=np.float32)
        has(raised(ValueError, nym.global_to_host_local, [there]), f"[0]: process {PROCESS} has no part of an array of "
            f"shape {shape}: it has none of the devices")
text = raised(ValueError, nym.host_local_to_global, part, {}, first, check=True, timeout=30)
has(text, "has no device of the mesh (data: 2)")

# A mesh with the devices of each process along its diagonals: no part is an array unless one axis is replicated.
turns = [[jax.local_devices(process_index=(row + column) % PROCESSES)[row] for column in range(2)] for row in range(2)]
diagonal = jax.sharding.Mesh(np.array(turns), ("data", "model"))
square = nym.NamedArray(np.arange(16).reshape(4, 4), ("batch", "embed"))
if PROCESSES == 2:
    text = raised(ValueError, nym.host_local_to_global, square, {"batch": "data", "embed": "model"}, diagonal)
    has(text, "(batch, embed) is sharded so that the parts in process 0 do not form an array: (0, 0), (1, 1); make a")
    for mapping in ({"batch": "data"}, {"embed": "model"}, {"batch": ("data", "model")}, {}):
        joined = nym.host_local_to_global(square, mapping, diagonal, check=True, timeout=30)
        np.testing.assert_array_equal(nym.global_to_host_local(joined).array, square.array)
    sharding = jax.NamedSharding(diagonal, jax.P("data", "model"))
    made = jax.make_array_from_callback((4, 4), sharding, lambda at: square.array[at])
    has(raised(ValueError, nym.global_to_host_local, made), "process", "that do not form an array")

# A process raises its own error even if the others do not arrive at the check, with a note about that.
if PROCESS != 1:
    text = raised(TimeoutError, nym.host_local_to_global, part, {"batch": "data"}, mesh, check=True, timeout=0.3)
    has(text, "the check of `host_local_to_global` waited 0.3 s for process 1")
if PROCESS == 0:
    try:
        nym.host_local_to_global(part, None, mesh, check=True, timeout=0.3)
        raise AssertionError("no ValueError")
    except ValueError as error:
        has(str(error), "needs a mapping")
        has(error.__notes__[0], "the check of `host_local_to_global` waited 0.3 s for process")
print("done", PROCESS)
"""


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_processes_assemble_their_parts_and_get_them_back(processes, devices):
    outputs = run(PARTS, processes, devices)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True] * processes
