"""`time_by_layer` adds up traces by layer: a real one of eight CPU devices, and written ones of TPUs and GPUs."""

from re import escape

import equinox as eqx
import jax
import pytest
from jax.profiler import ProfileData

import axonym as nym


Batch, Embed, Mlp, Layers = nym.make_axes(batch=16, embed=32, mlp=64, layers=2)


class Block(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(key):
        first, second = jax.random.split(key)
        return Block(nym.nn.Linear.init(Embed, Mlp, key=first), nym.nn.Linear.init(Mlp, Embed, key=second))

    def __call__(self, x):
        return x + self.down(nym.tanh(self.up(x)))


def test_a_trace_of_devices_is_added_up_by_layer(auto_mesh, tmp_path):
    blocks = nym.nn.Stacked.init(Layers, Block)(key=jax.random.split(jax.random.key(0), Layers.size))

    @nym.named_jit(retrace_warning=False)
    def compute_loss(model, x):
        return model["blocks"].fold(x).sum().scalar()

    with jax.set_mesh(auto_mesh), nym.axis_mapping({"batch": "data", "mlp": "model"}):
        model, x = nym.shard(({"blocks": blocks}, nym.ones((Batch, Embed))))
        step = nym.named_jit(lambda model, x: eqx.filter_grad(compute_loss)(model, x))
        jax.block_until_ready(step(model, x))
        with jax.profiler.trace(str(tmp_path)):
            for _ in range(2):
                jax.block_until_ready(step(model, x))
    times = nym.report.time_by_layer(tmp_path)
    layers = {time.layer: time for time in times.layers}
    assert times.devices == 8
    up, down = layers["compute_loss/blocks/up"], layers["compute_loss/blocks/down"]
    assert up.computing > 0 and down.computing > 0 and times.communication > 0
    assert up.runs % (8 * 2) == 0
    assert sum(time.share for time in times.layers) == pytest.approx(1)
    assert times.seconds == pytest.approx(sum(time.seconds for time in times.layers))
    assert [time.seconds for time in times.layers] == sorted((time.seconds for time in times.layers), reverse=True)
    assert times.to_dict()["devices"] == 8 and times.to_dict()["layers"][0]["layer"] == times.layers[0].layer
    assert times.layers[0].layer in str(times) and "communication ms" in times._repr_html_()
    assert f"… {len(layers) - 1} more" in times.table(limit=1)


def encode(number, content):
    """Returns a field of a protocol buffer that holds bytes."""
    content = content.encode() if isinstance(content, str) else content
    length = len(content)
    size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return bytes([number << 3 | 2]) + size + content


def write_trace(folder, planes, *instructions):
    """Writes a trace whose program `jit_step(7)` has instructions, given by name, kind and path of scopes."""
    parts = [encode(1, name) + encode(2, opcode) + encode(7, encode(2, path)) for name, opcode, path in instructions]
    hlo = encode(1, encode(3, b"".join(encode(2, part) for part in parts)))
    escaped = "".join(f"\\{byte:03o}" for byte in hlo)
    metadata = (
        'planes { name: "/host:metadata" event_metadata { key: 7 value { id: 7 name: "jit_step(7)" '
        f'stats {{ metadata_id: 1 bytes_value: "{escaped}" }} }} }} }}'
    )
    run = folder / "plugins" / "profile" / "2030_01_01_00_00_00"
    run.mkdir(parents=True)
    (run / "host.xplane.pb").write_bytes(ProfileData.text_proto_to_serialized_xspace(metadata + planes))


INSTRUCTIONS = (
    ("while.1", "while", "jit(step)/jvp(blocks)/while"),
    ("fusion.1", "fusion", "jit(step)/jvp(blocks)/while/body/closed_call/blocks/up/dot(embed -> mlp)/dot_general"),
    ("all-gather-done.1", "all-gather-done", "jit(step)/transpose(jvp(blocks))/while/body/closed_call/blocks/up/dot"),
    ("copy.2", "copy", ""),
)
TPU = """
planes { name: "/device:TPU:0"
  lines { name: "XLA Modules" events { metadata_id: 1 duration_ps: 9000000000 } }
  lines { name: "XLA Ops"
    events { metadata_id: 2 duration_ps: 8000000000 }
    events { metadata_id: 3 duration_ps: 3000000000 }
    events { metadata_id: 4 offset_ps: 3000000000 duration_ps: 5000000000 }
    events { metadata_id: 5 offset_ps: 8000000000 duration_ps: 1000000000 } }
  lines { name: "Async XLA Ops" events { metadata_id: 4 duration_ps: 9000000000 } }
  event_metadata { key: 1 value { id: 1 name: "jit_step(7)" } }
  event_metadata { key: 2 value { id: 2 name: "%while.1 = (f32[8]) while(%tuple.1)" } }
  event_metadata { key: 3 value { id: 3 name: "%fusion.1 = f32[8] fusion(%copy.2)" } }
  event_metadata { key: 4 value { id: 4 name: "%all-gather-done.1 = f32[8] all-gather-done(%x)" } }
  event_metadata { key: 5 value { id: 5 name: "copy.2" } } }
"""
GPU_EVENT = (
    "events {{ metadata_id: 1 duration_ps: {} stats {{ metadata_id: 1 str_value: '{}' }} "
    "stats {{ metadata_id: 2 str_value: 'jit_step' }} stats {{ metadata_id: 3 uint64_value: 7 }} }}"
)
GPU = (
    'planes { name: "/device:GPU:0" lines { name: "Stream #7(Compute)" '
    + GPU_EVENT.format(3000000000, "while.1::fusion.1")
    + GPU_EVENT.format(1000000000, "copy.2")
    + '} lines { name: "Stream #8(Memcpy)" '
    + GPU_EVENT.format(5000000000, "all-gather-done.1")
    + "} event_metadata { key: 1 value { id: 1 name: 'kernel' } } "
    + "".join(
        f"stat_metadata {{ key: {key} value {{ id: {key} name: '{name}' }} }} "
        for key, name in ((1, "hlo_op"), (2, "hlo_module"), (3, "program_id"))
    )
    + "}"
)


@pytest.mark.parametrize("planes", [TPU, GPU], ids=["TPU", "GPU"])
def test_traces_of_accelerators_are_read(tmp_path, planes):
    write_trace(tmp_path, planes, *INSTRUCTIONS)
    times = nym.report.time_by_layer(str(tmp_path))
    assert (times.devices, times.programs) == (1, ("jit_step",))
    assert [(time.layer, time.runs) for time in times.layers] == [("blocks/up", 2), ("", 1)]
    up, rest = times.layers
    assert (up.computing, up.communication, rest.seconds) == pytest.approx((3e-3, 5e-3, 1e-3))
    assert (up.share, times.computing, times.communication) == pytest.approx((8 / 9, 4e-3, 5e-3))
    assert "9.00 ms of 1 device in jit_step: computing 4.00 ms, communication 5.00 ms" in str(times)


def test_kernels_in_cuda_graphs_are_told_apart(tmp_path):
    """An H100 names a graph, `command_buffer_8`, and not the instructions in it."""
    write_trace(tmp_path, GPU.replace("copy.2", "command_buffer_8"), *INSTRUCTIONS)
    times = nym.report.time_by_layer(tmp_path)
    assert (times.in_graphs, times.layers[-1].layer) == (pytest.approx(1e-3), "")
    assert "1.00 ms ran in CUDA graphs, of which the trace has no layers; set `XLA_FLAGS=--xla_gpu_enable" in str(times)


def test_what_is_no_trace_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    write_trace(tmp_path / "idle", "")
    path = str(tmp_path)
    for folder, error, message in (
        (7, TypeError, "`time_by_layer` takes the folder of a trace, as `jax.profiler.trace` does, not a int."),
        (tmp_path / "gone", FileNotFoundError, f"there is no folder '{path}/gone'; pass the one that"),
        (tmp_path / "empty", FileNotFoundError, f"the folder '{path}/empty' has no trace, which is a file *.xplane.pb"),
        (tmp_path / "notes.txt", ValueError, f"'{path}/notes.txt' is not a trace of `jax.profiler.trace`"),
        (tmp_path / "idle", ValueError, f"no compiled program ran during the trace in '{path}/idle'; call it within"),
    ):
        with pytest.raises(error, match=escape(message)):
            nym.report.time_by_layer(folder)
    write_trace(tmp_path / "short", GPU, *INSTRUCTIONS)
    with pytest.raises(ValueError, match=r"`limit` is the number of layers to show, or None for all; it was -1"):
        nym.report.time_by_layer(tmp_path / "short").table(limit=-1)
