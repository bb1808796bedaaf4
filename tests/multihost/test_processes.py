"""Two real processes on one machine: meshes, barriers, broadcasts, comparisons, parts of arrays, mishaps."""

from tests.processes import run


# Each part starts with processes that have come to the same call.
START = """
import time, types
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from axonym.multihost._rendezvous import get_coordination_store

year = 365 * 24 * 3600
start(coordinator_bind_address=f"127.0.0.1:{PORT}", initialization_timeout=year, heartbeat_timeout_seconds=year,
      shutdown_timeout_seconds=20)
has(raised(RuntimeError, start), "`initialize` was called before")
store = get_coordination_store().client
started = time.monotonic()

# A process that comes late to the first call, before JAX has found any device, is named, and is told at once. The next
# call of each meets the next call of the other, also if it has the same name, or none.
for name in ("first", None):
    if PROCESS == 1:
        store.blocking_key_value_get(f"given up on {name}", 60_000)
    text = raised(TimeoutError, nym.barrier_sync, 1, name)
    if PROCESS == 0:
        has(text, " waited 1 s for process 1 of 2, which did not arrive: slow, stuck or dead")
        store.key_value_set(f"given up on {name}", "")
    else:
        has(text, " is over: process 0 gave up after 1 s, before this process, 1, arrived")
    has(text, "barrier 'first'" if name else "an unnamed barrier (call 1 of this process)")
    assert ("match in the order of calls" in text) == (name is None)
    nym.barrier_sync(20, name)
for name in (None, "again / and\\nagain", *map(str, range(20))):
    nym.barrier_sync(20, name)

# Barriers with different names do not meet.
has(raised(TimeoutError, nym.barrier_sync, 0.3, f"of {PROCESS}"), f"barrier 'of {PROCESS}' waited 0.3 s for process")
"""

MISHAPS = """
def same(value):
    nym.assert_same_on_all_hosts(value, timeout=20)

def sent(value, timeout=20):
    return nym.broadcast_from_host_zero(value if PROCESS == 0 else None, timeout=timeout)

class Bad:
    def __reduce__(self):
        raise RuntimeError("boom")

class Worse:
    def __getattr__(self, name):
        raise RuntimeError("boom")

# Whatever an object's own methods raise, all processes hear of it, and the next call works.
deep = []
for _ in range(3000):
    deep = [deep]
has(raised(TypeError, sent, Bad()), "the tree of process 0 cannot be sent to the others: RuntimeError: boom")
assert sent("again") == "again"
gone = jnp.ones(3)
gone.delete()
has(raised(TypeError, sent, [gone]), "cannot be sent to the others: RuntimeError: Array has been deleted")
has(raised(TypeError, same, Worse() if PROCESS else 1), "on process 1: a value of type `Worse` cannot be compared")
has(raised(TypeError, same, deep if PROCESS == 0 else 1), "on process 0: a value of type `list` cannot be compared")
same("again")

# It hears of its own error even if nobody else comes.
if PROCESS == 0:
    has(raised(TypeError, sent, Bad(), 0.2), "the tree of process 0 cannot be sent to the others: RuntimeError: boom")
    store.key_value_set("failed alone", "")
else:
    store.blocking_key_value_get("failed alone", 60_000)
    has(raised(TimeoutError, sent, None), "is over: process 0 gave up after 0.2 s")
assert sent("again") == "again"

# Arrays are found at any depth, beside keys of any kinds, and stay one where they are one.
x = nym.NamedArray(jnp.asarray([-0.0, np.nan, 1.5], "bfloat16"), "batch")
value = {1: x.array, "a": {2, "b"}, None: types.SimpleNamespace(at=(x, jax.random.key(3), np.arange(3)))}
got = sent(value)
assert list(map(str, got)) == ["1", "a", "None"] and got["a"] == {2, "b"} and got[1] is got[None].at[0].array
assert isinstance(got[1], jax.Array) and np.asarray(got[1]).tobytes() == np.asarray(x.array).tobytes()
assert got[None].at[0].names == ("batch",) and isinstance(got[None].at[2], np.ndarray)
assert jax.random.key_data(got[None].at[1]).tolist() == jax.random.key_data(jax.random.key(3)).tolist()

# What is large comes in pieces, and within the time.
large = np.random.default_rng(1).bytes((9 << 20) + 1)
assert sent(large) == large
nym.barrier_sync(20)
assert sent(bytes(16 << 20)) == bytes(16 << 20)

# A difference is shown wherever it is, also beyond the end of a text.
for at in (5, 200_001):
    text = raised(ValueError, same, "a" * at + f"{PROCESS}" + "b" * 70_000)
    has(text, "process 0 has ", "aa0bb", "aa1bb", "bb...; process 1 has ")
    assert len(text) < 900
has(raised(ValueError, same, "a" * 70_000 + "b" * 70_000 * PROCESS), "aa'; process 1 has ...aa", "aabb")
has(raised(ValueError, same, types.SimpleNamespace(rate=PROCESS).__repr__), "{'rate': 0}", "{'rate': 1}")
nym.barrier_sync(20, chr(0xD800) + " is half a character")
"""

AGREEMENT = """
mesh = nym.create_mesh((2, 4), ("data", "model"))
spread = jax.make_array_from_callback(
    (8,), jax.NamedSharding(mesh, jax.P(("data", "model"))), lambda at: np.arange(8.0)[at]
)
has(raised(ValueError, nym.broadcast_from_host_zero, spread), "array of shape (8,) is sharded over several processes")
names = {"batch", "embed", "mlp", "heads", "vocab"}
mapping = nym.AxisMapping({name: "data" for name in names}, uneven="replicate")
entries = {name: "model" for name in names}
for value in (names, mapping, entries, mesh, spread, x, 17, {"specs": [jax.P("data", None)]}, nym.shard, np.float32):
    same(value)
orders = {nym.broadcast_from_host_zero(str(names)), str(names)}
if PROCESS:
    assert len(orders) == 2, "the hash seeds give one order of a set; choose others"

odd = {"batch": ("data", "model") if PROCESS else "data"}
text = raised(ValueError, nym.assert_same_on_all_hosts, nym.AxisMapping(odd), "compute mapping")
has(text, "'compute mapping' differs between processes: process 0 has AxisMapping{'batch': 'data'",
    "; process 1 has AxisMapping{'batch': ('data', 'model')")
has(raised(ValueError, same, np.full(3, PROCESS)), "a value differs", "array(int64[3], ")
text = raised(TypeError, nym.assert_same_on_all_hosts, iter(()) if PROCESS else (row for row in ()), "rows")
has(text, "`assert_same_on_all_hosts` of 'rows' on process 0: an object of type `generator`")
if PROCESS == 0:
    text = raised(TimeoutError, nym.assert_same_on_all_hosts, 1, "seed", timeout=0.3)
    has(text, "`assert_same_on_all_hosts` of 'seed' waited 0.3 s for process 1")

# What is over leaves nothing behind, but for what some process did not come to.
while {key.split("/")[2] for key, _ in store.key_value_dir_get_bytes("axonym")} - {"seed", "of%200", "of%201"}:
    assert time.monotonic() - started < 60
    time.sleep(0.05)
"""

MESHES = """
from axonym.mesh import calculate_host_mesh_shape, cpu_context, create_cpu_mesh, create_mesh, parse_mesh_from_string

def total(mesh, spec):
    rows = jax.make_array_from_callback((128,), jax.NamedSharding(mesh, spec), lambda index: np.arange(128.0)[index])
    return float(jax.jit(lambda rows: rows.sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))(rows))

ordered = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
names = ("dp", "fsdp", "ep", "tp", "sp")
for use_jax in (False, True):
    for sizes in [(1, 8, 1, 1, 1), (2, 4, 1, 1, 1), (1, 4, 1, 2, 1), (8, 1, 1, 1, 1)]:
        mesh = create_mesh(sizes, names, use_jax=use_jax)
        assert mesh.devices.shape == sizes and mesh.devices.ravel().tolist() == ordered
assert total(mesh, jax.P("dp")) == 8128

# The factor of the slow network is on the axis that was asked, and within its size.
mesh = create_mesh((1, 4, 1, 2, 1), names, (1, 1, 1, 2, 1))
processes = [[device.process_index for device in row] for row in mesh.devices.reshape(4, 2)]
assert mesh.devices.shape == (1, 4, 1, 2, 1) and processes == [[0, 1]] * 4
assert total(mesh, jax.P(("fsdp", "tp"))) == 8128

assert calculate_host_mesh_shape((2, 4)) == (1, 4)
assert parse_mesh_from_string("tp:-1", names).devices.shape == (1, 1, 1, 8, 1)
assert create_mesh((4,), ("a",), devices=jax.local_devices()).devices.size == 4
assert create_cpu_mesh() == create_mesh()
with cpu_context() as mesh:
    assert mesh.devices.ravel().tolist() == ordered
    assert jax.config.jax_default_device == jax.local_devices()[0]
"""

PARTS = """
MAPPINGS = [{"batch": "data"}, {"batch": "model"}, {"batch": ("model", "data")}, {"batch": "data", "embed": "model"}]
MAPPINGS += [{"embed": "data"}, {}]
AXES = ("batch", "embed", "pos")
rows = np.random.default_rng(0).normal(size=(8, 4, 3)).astype(np.float32)

# The processes are along the mesh axis `data` of one mesh and along `model` of the other.
for (sizes, names), kind in ((((2, 4), ("data", "model")), "auto"), (((4, 2), ("model", "data")), "explicit")):
    mesh = nym.create_mesh(sizes, names, axis_types=kind)
    with jax.set_mesh(mesh):
        for mapping in MAPPINGS:
            sharding = nym.sharding_for_axis(AXES, mapping)
            whole = nym.NamedArray(jax.make_array_from_callback(rows.shape, sharding, lambda at: rows[at]), AXES)
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
            np.testing.assert_array_equal(nym.global_to_host_local(back).array, own["x"].array)
    np.testing.assert_array_equal(multihost_utils.process_allgather(back.array, tiled=True), rows)

mesh = nym.create_mesh((2, 4), ("data", "model"))
make_global = nym.host_local_to_global
with jax.set_mesh(mesh), nym.axis_mapping(batch="data"):
    part = nym.NamedArray(np.full((2, 3), PROCESS), ("batch", "pos"))
    whole = make_global(part)
    assert whole.shape == {"batch": 4, "pos": 3}
    assert multihost_utils.process_allgather(whole.array, tiled=True)[:, 0].tolist() == [0, 0, 1, 1]
    with jax.set_mesh(None):
        own = nym.NamedArray(jnp.full((2, 3), PROCESS), ("batch", "pos"))
        keys = nym.NamedArray(jax.random.split(jax.random.key(PROCESS), 2), "batch")
    assert make_global(own).shape == whole.shape
    has(raised(ValueError, make_global, nym.NamedArray(jnp.full((2, 3), PROCESS), ("batch", "pos"))),
        "(batch: 2, pos: 3) is an array of all processes already, like every array that JAX makes", "NumPy")
    assert make_global(jax.ShapeDtypeStruct((), int)).sharding.spec == jax.P()

    # Random keys, and leaves that are not arrays.
    both = make_global((keys, 4, "name"))
    assert both[0].shape == {"batch": 4} and both[1:] == (4, "name")
    own = nym.global_to_host_local(both)
    with jax.set_mesh(None):
        assert (jax.random.key_data(own[0].array) == jax.random.key_data(keys.array)).all()

    has(raised(ValueError, make_global, {"x": whole}), "['x']: (batch: 4, pos: 3) is")
    third = nym.NamedArray(np.zeros((3, 5)), ("pos", "batch"))
    assert make_global(third).shape == {"pos": 3, "batch": 10}
    with nym.axis_mapping({"batch": ("data", "model")}):
        has(raised(ValueError, make_global, [third]), "[0]: axis 'batch' has size 5 in this process and 10 in total, "
            "which is not divisible by mesh axis 'data' of size 2 x 'model' of size 4; the next size in a process "
            "that fits is 8")
    with nym.axis_mapping({"batch": ("data", "model")}, uneven="replicate"):
        has(raised(ValueError, make_global, third), "axis 'batch' has size 5 in this process")

    # The check finds differences that would go unnoticed, and names the leaf once.
    def differing(tree):
        return raised(ValueError, make_global, tree, check=True, timeout=30)

    other, odd = 1 - PROCESS, bool(PROCESS)
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
    other_mesh = nym.create_mesh((8, 1), ("data", "model"))
    for different in ({}, {"batch": ("data", "model")}), (mesh, other_mesh):
        options = {"mapping": {"batch": "data"}, "mesh": mesh, "check": True, "timeout": 30}
        options["mesh" if different[0] is mesh else "mapping"] = different[odd]
        text = raised(ValueError, make_global, {"x": nym.NamedArray(np.zeros(8), "batch")}, **options)
        has(text, f"['x']: this process, {PROCESS}, makes (batch: ", " on mesh (data: ",
            f" and process {other} (batch: ", "; use the same mapping and mesh in all processes")
        assert text.count(" with P(") == 2

    # A process that cannot provide its part reports that at the check, and the next check is in step.
    with nym.axis_mapping({"batch": ("data", "model")}):
        text = differing({"x": nym.NamedArray(np.zeros(4 if PROCESS else 3), "batch")})
    told = "process 0 cannot provide its part, so no array is made; it raises ValueError: "
    assert text.startswith(told * PROCESS + "['x']: axis 'batch' has size 3 in this process and")
    with nym.axis_mapping({"batch": "data"} if PROCESS else {"batch": "nowhere"}):
        text = differing(part)
    assert text.startswith("process 0 cannot") == odd and "nowhere" in text
    text = raised(ValueError, make_global, nym.NamedArray(np.full(3, PROCESS), "pos"), check=True)
    assert text == "processes 0 and 1 have different data in the same part of int64 (pos: 3)"
    make_global(nym.NamedArray(np.full(3, PROCESS), "batch"), check=True)

# A mesh on which the processes share some parts but not others, and a mesh without devices of a process.
shuffled = np.array(jax.devices())
shuffled = np.concatenate([shuffled[:1], shuffled[2:], shuffled[1:2]]).reshape(-1, 2)
text = raised(ValueError, make_global, part, {"batch": "data"}, jax.sharding.Mesh(shuffled, ("data", "model")))
has(text, "axis 'batch' is sharded over", "processes share some of their parts but not others (process 0: [")
first = nym.create_mesh((2,), ("data",), devices=jax.devices()[:2])
if PROCESS:
    for mapping in ({"batch": "data"}, {}):
        assert raised(ValueError, make_global, part, mapping, first) == (
            "process 1 has no device of the mesh (data: 2), so it has no part of any array on it")
    there = jax.make_array_from_single_device_arrays((4, 2), jax.NamedSharding(first, jax.P()), [], dtype=np.float32)
    has(raised(ValueError, nym.global_to_host_local, [there]),
        "[0]: process 1 has no part of an array of shape (4, 2): it has none of the devices")
text = raised(ValueError, make_global, part, {}, first, check=True, timeout=30)
has(text, "has no device of the mesh (data: 2)")

# A mesh with the devices of each process along its diagonals: no part is an array unless one axis is replicated.
turns = [[jax.local_devices(process_index=(row + column) % 2)[row] for column in range(2)] for row in range(2)]
diagonal = jax.sharding.Mesh(np.array(turns), ("data", "model"))
square = nym.NamedArray(np.arange(16).reshape(4, 4), ("batch", "embed"))
text = raised(ValueError, make_global, square, {"batch": "data", "embed": "model"}, diagonal)
has(text, "(batch, embed) is sharded so that the parts in process 0 do not form an array: (0, 0), (1, 1); make a")
for mapping in ({"batch": "data"}, {"embed": "model"}, {"batch": ("data", "model")}, {}):
    joined = make_global(square, mapping, diagonal, check=True, timeout=30)
    np.testing.assert_array_equal(nym.global_to_host_local(joined).array, square.array)
sharding = jax.NamedSharding(diagonal, jax.P("data", "model"))
made = jax.make_array_from_callback((4, 4), sharding, lambda at: square.array[at])
has(raised(ValueError, nym.global_to_host_local, made), "process", "that do not form an array")

# A process raises its own error even if the others do not arrive at the check, with a note about that.
if PROCESS == 0:
    text = raised(TimeoutError, make_global, part, {"batch": "data"}, mesh, check=True, timeout=0.3)
    has(text, "the check of `host_local_to_global` waited 0.3 s for process 1")
    try:
        make_global(part, None, mesh, check=True, timeout=0.3)
        raise AssertionError("no ValueError")
    except ValueError as error:
        has(str(error), "needs a mapping")
        has(error.__notes__[0], "the check of `host_local_to_global` waited 0.3 s for process")
print("done", PROCESS)
"""


def test_two_processes_agree_fail_and_share_arrays_together():
    program = START + MISHAPS + AGREEMENT + MESHES + PARTS
    outputs = run(program, processes=2, devices=4, environment=[{"PYTHONHASHSEED": seed} for seed in "12"])
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True, True]
