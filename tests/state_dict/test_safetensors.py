"""Files of safetensors: layouts, axes, dtypes, damage, interrupted saves, several processes and memory."""

import json
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import axonym as nym
from axonym import state_dict as sd
from axonym.state_dict._safetensors_format import ArrayInfo, make_header

from ..comparing import assert_same
from ..processes import run
from ..refusals import refusal
from .test_state_dict import Embed, HeadDim, Heads, Layers, Renamed, make_model


INDEX = "model.safetensors.index.json"
MAPPINGS = [("auto", {"embed": "data", "heads": "model"}), ("explicit", {"layers": "model", "embed": "data"})]


@pytest.mark.parametrize(("mesh", "mapping"), MAPPINGS, indirect=["mesh"], ids=["auto", "explicit"])
def test_files_are_those_of_the_library_and_are_loaded_sharded(mesh, mapping, tmp_path, getkey):
    with nym.axis_mapping(mapping):
        model = nym.named_jit(lambda key: {**make_model(key), "more": [None, jnp.arange(3), 2.5]})(getkey())
        sd.save_safetensors(model, tmp_path, max_shard_size=800)
        files = sorted(path.name for path in tmp_path.iterdir())
        assert files[0] == f"model-00001-of-{len(files) - 1:05}.safetensors" and files[-1] == INDEX
        index = json.loads((tmp_path / INDEX).read_text())
        expected = sd.to_torch_compatible_state_dict(model)
        arrays = {key: array for file in files[:-1] for key, array in load_file(tmp_path / file).items()}
        assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays.values())
        assert index["weight_map"].keys() == arrays.keys() == expected.keys()
        assert all(np.array_equal(array, expected[key]) for key, array in arrays.items())
        with safe_open(tmp_path / files[0], "np") as file:
            assert file.metadata()["format"] == "pt"
        like = eqx.filter_eval_shape(lambda: model)
        loaded = sd.load_safetensors(like, tmp_path)
        assert_same(loaded, model)
        for first, second in zip(nym.tree.leaves(loaded), nym.tree.leaves(model), strict=True):
            assert not nym.is_named_array(first) or first.sharding.is_equivalent_to(second.sharding, first.ndim)
    # Elsewhere, by a mapping and a mesh that are given, or as the arrays of `like`.
    with jax.set_mesh(None):
        moved = sd.load_safetensors(like, tmp_path, {"embed": "all"}, nym.create_mesh((8,), ("all",)))
        assert moved["blocks"].stacked.out.weight.sharding.spec[1] == "all"
        assert_same(moved, model)
        reloaded = sd.load_safetensors(moved, tmp_path)
    assert reloaded["blocks"].stacked.out.weight.sharding == moved["blocks"].stacked.out.weight.sharding


def test_modules_with_keys_and_values_of_their_own_are_saved(tmp_path, getkey):
    stack = [nym.nn.Stacked.init(Layers, Renamed)(key=getkey()), nym.nn.BlockSeq.init(Layers, Renamed)(key=getkey())]
    sd.save_safetensors(stack, tmp_path, prefix="model")
    saved = load_file(tmp_path / "model.safetensors")
    assert saved["model.0.1.ln.weight"].shape == (8,) and saved["model.1.1.weight"].shape == (8, 8)
    np.testing.assert_array_equal(saved["model.0.1.scale"], 1 / np.asarray(stack[0].stacked.scale[1]))
    loaded = sd.load_safetensors(eqx.filter_eval_shape(lambda: stack), tmp_path, prefix="model")
    np.testing.assert_allclose(loaded[0].stacked.scale, stack[0].stacked.scale, rtol=1e-6)
    assert_same(loaded[0].stacked.out, stack[0].stacked.out)
    sd.save_safetensors(stack, tmp_path, flatten=False)
    assert load_file(tmp_path / "model.safetensors")["1.1.weight"].shape == (8, 4, 2)
    assert_same(sd.load_safetensors(stack, tmp_path)[1].blocks[0].out, stack[1].blocks[0].out)


def test_bits_of_each_dtype_are_kept(tmp_path):
    dtypes = ("bool", "int8", "uint32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "complex64")
    arrays = {name: np.arange(8).astype(jnp.dtype(name)) for name in dtypes}
    tree = {
        "host": arrays,
        "named": {name: nym.NamedArray(jax.device_put(array), Embed) for name, array in arrays.items()},
        "scalar": {name: jax.device_put(array[1]) for name, array in arrays.items()},
        "empty": {name: jax.device_put(array[:0].reshape(0, 3)) for name, array in arrays.items()},
    }
    sd.save_safetensors(tree, tmp_path)
    loaded = sd.load_safetensors(tree, tmp_path)
    assert_same(loaded, tree)
    assert all(type(array) is np.ndarray for array in loaded["host"].values())


def test_random_keys_are_saved_as_data_and_other_leaves_are_not(tmp_path, explicit_mesh):
    keys = nym.shard(nym.NamedArray(jax.random.split(jax.random.key(1), 4), "heads"), {"heads": "data"}, explicit_mesh)
    tree = {"keys": keys, "key": jax.random.key(2, impl="rbg"), "none": None, "rate": 0.1, "act": jax.nn.relu}
    sd.save_safetensors(tree, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == {"keys", "key"}
    loaded = sd.load_safetensors({**tree, "rate": 0.2}, tmp_path)
    assert loaded["rate"] == 0.2
    assert_same({**loaded, "rate": 0.1}, tree)
    for field, message in (
        (jax.random.key(2), "'key' was saved with keys of 'rbg', its field has keys of 'threefry2x32'"),
        (np.zeros(4, np.uint32), "'key' was saved as random keys of 'rbg', its field is uint32"),
    ):
        with refusal(message):
            sd.load_safetensors({**tree, "key": field}, tmp_path)
    with refusal("'x' is int4, which safetensors cannot hold; convert it with `astype`"):
        sd.save_safetensors({"x": np.ones(2, jnp.int4)}, tmp_path)


def test_axes_in_another_order_are_undone_and_not_transposed_silently(tmp_path, draw):
    Mlp = nym.Axis("mlp", 8)  # of the size of `embed`
    weight = draw(mlp=8, embed=8)
    like = {"weight": nym.zeros((Embed, Mlp))}
    sd.save_safetensors({"weight": weight}, tmp_path)
    loaded = sd.load_safetensors(like, tmp_path, {"embed": "a", "mlp": "b"}, nym.create_mesh((2, 4), ("a", "b")))
    assert loaded["weight"].names == ("embed", "mlp") and (loaded["weight"] == weight).all()
    message = r"'weight' was saved as \(mlp: 8, embed: 8\), its field is \(embed: 8, mlp: 8\)"
    with pytest.raises(ValueError, match=rf"{message}; `axis_order='transpose'` restores the order"):
        sd.load_safetensors(like, tmp_path, axis_order="error")
    for second in ((Embed, nym.Axis("other", 8)), (nym.Axis("embed", 4), nym.Axis("mlp", 16))):
        with pytest.raises(ValueError, match=r"'weight' was saved as \(mlp: 8, embed: 8\), its field is \(embed: "):
            sd.load_safetensors({"weight": nym.zeros(second)}, tmp_path)
    with pytest.raises(ValueError, match="`axis_order` is 'transpose' or 'error', not 'other'"):
        sd.load_safetensors(like, tmp_path, axis_order="other")  # pyright: ignore[reportArgumentType]


def test_merged_axes_in_another_order_are_split_and_undone(tmp_path, getkey):
    layer = nym.nn.Linear.init(Embed, (Heads, HeadDim), key=getkey())
    sd.save_safetensors(layer, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["weight"].shape == (8, 8)
    for out, first in (((HeadDim, Heads), True), ((Heads, HeadDim), False)):
        like = nym.nn.Linear.init(Embed, out, key=getkey(), out_first=first)
        loaded = sd.load_safetensors(like, tmp_path)
        assert loaded.weight.names == like.weight.names and (loaded.weight == layer.weight).all()
        assert (loaded.bias == layer.bias).all()
    # A weight in another order than its layer merges it in cannot be merged in place, but is saved in the same layout.
    odd = eqx.tree_at(lambda x: x.weight, layer, layer.weight.rearrange(("head_dim", "heads", "embed")))
    expected = sd.to_torch_compatible_state_dict(odd)["weight"]
    sd.save_safetensors(odd, tmp_path)
    np.testing.assert_array_equal(load_file(tmp_path / "model.safetensors")["weight"], expected)
    assert_same(sd.load_safetensors(odd, tmp_path).weight.rearrange(layer.weight.names), layer.weight)


def test_files_of_other_libraries_are_read_by_shape(tmp_path, getkey):
    model = make_model(getkey())
    state = sd.to_torch_compatible_state_dict(model)
    save_file(state, tmp_path / "model.safetensors")
    assert_same(sd.load_safetensors(model, tmp_path / "model.safetensors"), model)
    state["blocks.0.out.weight"] = state["blocks.0.out.weight"][:4]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="does not fit") as caught:
        sd.load_safetensors(model, tmp_path)
    assert str(caught.value).splitlines()[1:] == [
        "  'blocks.0.out.weight' has shape (4, 8), its field is (embed: 8, heads: 4, head_dim: 2), (8, 8) with merged"
        " axes",
    ]
    half = jax.tree.map(lambda x: x.astype(jnp.float16) if eqx.is_inexact_array(x) else x, model["norms"])
    save_file(sd.to_torch_compatible_state_dict(model), tmp_path / "model.safetensors")
    cast = sd.load_safetensors(half, tmp_path, prefix="norms", dtypes="cast")
    assert_same(cast, half)
    assert_same(sd.load_safetensors(half, tmp_path, prefix="norms", dtypes="keep"), model["norms"])


def test_a_mapping_needs_a_mesh_and_a_misspelt_name_in_it_is_a_warning(tmp_path):
    tree = {"x": nym.NamedArray(np.ones(8, np.float32), "vocabulary")}
    sd.save_safetensors(tree, tmp_path)
    with pytest.warns(RuntimeWarning, match="the mapping has no 'vocabulary', but has 'vocabulray'"):
        sd.load_safetensors(tree, tmp_path, {"vocabulray": "data"}, nym.create_mesh((8,), ("data",)))
    with refusal("`mapping` needs a mesh to load onto; set one with `jax"):
        sd.load_safetensors(tree, tmp_path, {"vocabulary": "data"})


def test_damaged_and_missing_files_are_errors_with_their_names(tmp_path):
    tree = {"a": nym.arange(Embed), "b": nym.ones((Heads, HeadDim))}
    path = tmp_path / "model.safetensors"
    sd.save_safetensors(tree, tmp_path)
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"model.safetensors' (is damaged or truncated|cannot be read): "):
            sd.load_safetensors(tree, tmp_path)
    path.write_bytes(whole.replace(b"__metadata__", b"__netadata__"))
    with pytest.raises(ValueError, match="damaged or truncated: its header lacks 'data_offsets'"):
        sd.load_safetensors(tree, tmp_path)
    for index in range(8 + int.from_bytes(whole[:8], "little")):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(ValueError, match=r"model.safetensors' is damaged or truncated: "):
            sd.load_safetensors(tree, tmp_path)
    sd.save_safetensors(tree, tmp_path / "prefix", prefix="norm")
    with pytest.raises(ValueError, match=r"'nrom\.a' is missing; did you mean 'norm\.a'\?"):
        sd.load_safetensors(tree, tmp_path / "prefix", prefix="nrom")
    sd.save_safetensors(tree, tmp_path, max_shard_size=32)
    second = tmp_path / "model-00002-of-00002.safetensors"
    sd.save_safetensors({"a": tree["a"]}, tmp_path / "other", max_shard_size=16)
    assert not path.exists() and os.listdir(tmp_path / "other") == ["model.safetensors"]
    remaining = second.read_bytes()
    sd.save_safetensors(tree, tmp_path, max_shard_size=32)
    second.write_bytes(remaining)
    with pytest.raises(ValueError, match=r"index.json' lists files of different saves: 'model-00001-of-00002"):
        sd.load_safetensors(tree, tmp_path)
    second.unlink()
    with pytest.raises(FileNotFoundError, match=r"index.json' lists 'model-00002-of-00002.safetensors', which is not"):
        sd.load_safetensors(tree, tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(ValueError, match=r"index.json' is damaged or truncated: "):
        sd.load_safetensors(tree, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere' has neither 'model.safetensors' nor 'model.safetensors.ind"):
        sd.load_safetensors(tree, tmp_path / "nowhere")


GOOD = '{"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}'
BAD_HEADERS = {
    "[]": "its header is no object in JSON",
    '{"x": ' * 100_000: "its JSON is nested too deeply",
    f'{{"x": {GOOD}, "x": {GOOD}}}': "it has the key 'x' twice",
    '{"x": 3}': "the entry of 'x' is no object in JSON",
    '{"x": {"dtype": "F32", "shape": [4]}}': "its header lacks 'data_offsets'",
    '{"x": {"dtype": 3, "shape": [4], "data_offsets": [0, 16]}}': "it has arrays of dtype 3, which JAX lacks",
    '{"x": {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}}': "the 'shape' of 'x' is not a list of integers",
    '{"x": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}': "the 'shape' of 'x' is not a list of integ",
    '{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, true]}}': "the 'data_offsets' of 'x' is not a list of",
    '{"x": {"dtype": "F32", "shape": [4], "data_offsets": [16]}}': "'x' has 1 offsets, not 2",
    '{"x": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}}': "the offsets of 'x' do not fit its shape",
    f'{{"x": {GOOD}, "y": {GOOD}}}': "the offsets of 'y' do not fit its shape, or overlap others",
    f'{{"__metadata__": [3], "x": {GOOD}}}': "its metadata is no object in JSON",
    f'{{"__metadata__": {{"axonym": "[]"}}, "x": {GOOD}}}': "its metadata is no object in JSON",
}


def test_wrong_headers_are_errors_with_the_name_of_the_file(tmp_path):
    for header, message in BAD_HEADERS.items():
        text = header.encode()
        (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
        with refusal(f"/model.safetensors' is damaged or truncated: {message}"):
            sd.load_safetensors({"x": np.ones(4, np.float32)}, tmp_path)


BAD_INDICES = {
    "[]": "is damaged or no index: it has no 'weight_map' from keys to names of files",
    '{"weight_map": {"x": 3}}': "is damaged or no index: it has no 'weight_map' from keys to names of files",
    '{"weight_map": {"x": "../out"}}': "lists 'x' in '../out', which is outside of its folder, so it is not read",
    '{"weight_map": {"x": "a/../../out"}}': "lists 'x' in 'a/../../out', which is outside of its folder",
    '{"weight_map": {"x": "a", "x": "b"}}': "is damaged or truncated: it has the key 'x' twice",
    '{"weight_map": {"x": "a", "y": "b"}}': "lists two files that have 'x', 'a' and 'b'",
    "[" * 100_000: "is damaged or truncated: its JSON is nested too deeply",
}


def test_wrong_indices_are_errors_with_the_name_of_the_file(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file({"x": np.ones(4)}, tmp_path / "out")
    save_file({"x": np.ones(4)}, folder / "a")
    save_file({"x": np.ones(4), "y": np.ones(4)}, folder / "b")
    for index, message in BAD_INDICES.items():
        (folder / INDEX).write_text(index)
        with refusal(f"/folder/model.safetensors.index.json' {message}"):
            sd.load_safetensors({"x": np.ones(4)}, folder, strict=False)


def test_axes_that_do_not_fit_a_shape_are_errors(tmp_path):
    axes: Any = ((("embed", 3),),)
    text, _ = make_header({"x": ArrayInfo(np.dtype("float32"), (4,), axes)}, "save")
    (tmp_path / "model.safetensors").write_bytes(text + bytes(16))
    with pytest.raises(ValueError, match=r"model.safetensors' is damaged or truncated: the axes of 'x' do not fit its"):
        sd.load_safetensors({"x": nym.ones({"embed": 4})}, tmp_path)


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("old", "new"), [(10**9, 10**9), (32, 10**9), (16, 32)])
def test_a_save_that_is_killed_leaves_one_save_or_none(old, new, tmp_path, monkeypatch):
    def make(value: float) -> dict[str, Any]:
        return {name: np.full(8, value, np.float32) for name in "abcd"}

    outcomes = []
    for steps in range(20):
        sd.save_safetensors(make(1.0), tmp_path, max_shard_size=old)
        left = steps

        def interrupt(method: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return method(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "write_text"):
                patch.setattr(Path, name, interrupt(getattr(Path, name)))
            patch.setattr(os, "pwrite", interrupt(os.pwrite))
            try:
                sd.save_safetensors(make(2.0), tmp_path, max_shard_size=new)
            except Killed:
                pass
        try:
            loaded = sd.load_safetensors(make(0.0), tmp_path)
            (value,) = np.unique([*loaded.values()])
            outcomes.append(value)
        except FileNotFoundError:
            outcomes.append(0.0)
        if left >= 0:
            break
    assert outcomes[0] == 1.0 and outcomes[-1] == 2.0 and len(outcomes) < 20
    assert (0.0 in outcomes) == (old < 10**9 and new < 10**9)


def test_a_full_disk_is_an_error_and_leaves_the_older_files(tmp_path):
    tree = {"a": nym.ones({"embed": 4096})}
    sd.save_safetensors(tree, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(OSError, match=rf"File too large: '{tmp_path}/model.safetensors'"):
            sd.save_safetensors({"a": tree["a"] * 2}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert_same(sd.load_safetensors(tree, tmp_path), tree)


def test_programs_that_save_to_one_folder_at_once_leave_one_save(tmp_path):
    def make(value: float) -> dict[str, Any]:
        return {name: np.full(1000, value, np.float32) for name in "abcd"}

    trees = [make(value) for value in range(3)]
    barrier = threading.Barrier(len(trees), timeout=20)

    def save(tree: Any) -> None:
        for size in (10**9, 5000):
            barrier.wait()
            sd.save_safetensors(tree, tmp_path, max_shard_size=size)
            barrier.wait()
            loaded = sd.load_safetensors(tree, tmp_path)
            assert np.unique([*loaded.values()]).size == 1

    with ThreadPoolExecutor(len(trees)) as pool:
        for saved in [pool.submit(save, tree) for tree in trees]:
            saved.result()
    assert sorted(os.listdir(tmp_path)) == [
        *(f"model-{index:05}-of-00004.safetensors" for index in range(1, 5)),
        INDEX,
    ]


def test_only_old_remains_of_killed_saves_are_removed_and_files_have_ordinary_permissions(tmp_path):
    names = (".model.safetensors.1.incomplete", ".axonym-1.incomplete", ".other.incomplete")
    for name in names:
        (tmp_path / name).touch()
    tree = {"a": np.ones(8)}
    sd.save_safetensors(tree, tmp_path)
    assert {*names} < {*os.listdir(tmp_path)}
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    before = os.umask(0o027)
    try:
        sd.save_safetensors(tree, tmp_path)
    finally:
        os.umask(before)
    assert sorted(os.listdir(tmp_path)) == [names[2], "model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_sizes_are_those_of_hugging_face(tmp_path):
    from axonym.state_dict._safetensors import parse_size

    sizes = {7: 7, "5GB": 5 * 10**9, "1.5 kb": 1500, "2MiB": 2**21, "64": 64}
    assert {size: parse_size(size) for size in sizes} == sizes
    for size in ("5XB", "", 0, -1, True, 2.5, None, "0GB"):
        with refusal("`max_shard_size` is a number of bytes or a text as '5GB' or '500MiB', not "):
            sd.save_safetensors({}, tmp_path, max_shard_size=size)


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FileExistsError, match=r"model.safetensors' is no regular file; remove it, or save elsewhere"):
        sd.save_safetensors({"x": jnp.ones(2)}, tmp_path)
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


PROGRAM = """
start()
import pathlib, os, types, uuid
import equinox as eqx
import numpy as np

class BrokenModule(eqx.Module):
    x: jax.Array

    def to_state_dict(self, prefix=None):
        raise RuntimeError("there is no dict")

uuid.uuid4 = lambda: types.SimpleNamespace(hex="0" * (32 - 16 * PROCESS))  # headers of different lengths
folder = pathlib.Path(os.environ["FOLDER"])
mesh = nym.create_mesh((2, 2), ("data", "model"))
sizes = {"mlp": 8192, "embed": 4096}  # 128 MiB, and 32 MiB in each slice
whole = {"weight": 4 * 8192 * 4096, "slice": 8192 * 4096}

def read_status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

def measure(call):
    '''Returns a result and the bytes of memory that the call needed at most.'''
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = read_status("VmRSS")
    result = jax.block_until_ready(call())
    return result, read_status("VmHWM") - before

with jax.set_mesh(mesh):
    for mapping in ({"mlp": "model", "embed": "data"}, {"mlp": "data", "embed": "model"}):
        with nym.axis_mapping(mapping):
            def make():
                rows = nym.arange(nym.Axis("mlp", 8192)) * 4096
                columns = nym.arange(nym.Axis("embed", 4096)).broadcast_axis(nym.Axis("mlp", 8192))
                return {"weight": (columns + rows).rearrange(("mlp", "embed")), "keys": jax.random.key(3)}
            tree = nym.named_jit(make)()
            nym.state_dict.save_safetensors({"small": nym.ones({"mlp": 4})}, folder / "small")  # compiles and connects
            _, used = measure(lambda: nym.state_dict.save_safetensors(tree, folder))
            assert used < 1.1 * whole["slice"], used
            like = jax.eval_shape(make)
            del tree
            loaded, used = measure(lambda: nym.state_dict.load_safetensors(like, folder))
            assert used < whole["weight"] // 2 + 1.1 * whole["slice"], used  # half of it is on the devices
            for shard in loaded["weight"].array.addressable_shards:
                rows, columns = (np.arange(size)[at] for size, at in zip(sizes.values(), shard.index))
                assert (np.asarray(shard.data) == rows[:, None] * 4096 + columns).all()
            del loaded, shard
    # An array of process 1 alone is refused, not written as zeros.
    theirs = jax.sharding.NamedSharding(jax.sharding.Mesh(jax.devices()[2:], "data"), jax.P("data"))
    own = [jax.device_put(np.ones(2, np.float32), device) for device in jax.local_devices()] if PROCESS == 1 else []
    x = {"x": jax.make_array_from_single_device_arrays((4,), theirs, own, dtype=np.float32)}
    text = raised(ValueError if PROCESS == 0 else OSError, nym.state_dict.save_safetensors, x, folder / "theirs")
    has(text, "'x' is on devices of process 1 alone; shard it over those of all processes")
    # A process that has another tree, or cannot make its own, tells the others.
    x = np.arange(8.0)
    trees = {
        "other_leaves": [{"x": x}, {"x": x, "y": x}],
        "other_dtype": [{"x": x}, {"x": x.astype("f")}],
        "other_names": [{"x": nym.NamedArray(x, ("mlp",))}, {"x": nym.NamedArray(x, ("embed",))}],
    }
    for name, tree in trees.items():
        text = raised(ValueError, nym.state_dict.save_safetensors, tree[PROCESS], folder / name)
        has(text, "`save_safetensors`' differs between processes: process 0 has {'x': ", "; process 1 has {'x': ")
    broken = {"x": BrokenModule(x) if PROCESS else x}
    text = raised(RuntimeError if PROCESS else OSError, nym.state_dict.save_safetensors, broken, folder / "broken")
    has(text, "there is no dict", *([] if PROCESS else ["failed in process 1: RuntimeError: "]))
    # A process that cannot write tells the others, which need it to slice layers that it has a part of.
    with nym.axis_mapping(layers="data"):
        init_layers = nym.nn.Stacked.init(nym.Axis("layers", 4), nym.nn.RmsNorm)
        layers = nym.named_jit(lambda: init_layers(nym.Axis("embed", 4)))()
    if PROCESS == 1:
        import axonym.state_dict._safetensors as saving
        def fail(*args):
            raise OSError("no space left")
        saving.write_array = fail
    text = raised(OSError, nym.state_dict.save_safetensors, layers, folder / "failed", timeout=30)
    assert "no space left" in text
    has(text, *(["`save_safetensors` to ", "failed in process 1: OSError: ", "no space left"] if PROCESS == 0 else []))
    assert PROCESS or not list((folder / "failed").iterdir())
print("done")
"""


def test_processes_write_and_read_their_slices_at_once(tmp_path):
    for output in run(PROGRAM, 2, 2, environment=[{"FOLDER": str(tmp_path)}] * 2):
        assert "done" in output
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        rows = file.get_slice("weight")[8000:8002]
    np.testing.assert_array_equal(rows, np.arange(8000 * 4096, 8002 * 4096).reshape(2, 4096))
