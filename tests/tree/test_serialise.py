"""Leaves in a file with the names of their axes."""

import io
import zlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.refusals import refusal


Embed, Mlp = nym.make_axes(embed=8, mlp=8)


def make_tree(key: Any) -> dict[str, Any]:
    return {
        "layer": nym.nn.Linear.init(Embed, Mlp, key=key),
        "half": nym.ones(Embed, jnp.bfloat16),
        "small": {name: nym.arange(Embed).astype(name) for name in ("float8_e4m3fn", "float8_e5m2", "int4")},
        "keys": nym.NamedArray(jax.random.split(key, 8), "embed"),
        "key": jax.random.key(3, impl="rbg"),
        "host": np.arange(3),
        "host_half": np.arange(3).astype(jnp.bfloat16),
        "plain": jnp.arange(4) > 1,
        "rate": 0.5,
        "step": 3,
        "none": None,
        "act": jax.nn.relu,
    }


def list_arrays(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if eqx.is_array_like(leaf) and hasattr(leaf, "dtype")]


def get_bits(tree: Any) -> list[np.ndarray]:
    arrays = list_arrays(tree)
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in arrays]


def test_leaves_come_back_bit_for_bit_sharded_by_the_mapping(mesh, tmp_path, getkey):
    tree = make_tree(getkey())
    with nym.axis_mapping({"embed": "data", "mlp": "model"}):
        sharded = nym.shard(tree)
        nym.tree.serialise_leaves(tmp_path / "tree", sharded)
        like = {**make_tree(jax.random.key(0)), "rate": 0.0, "step": 0}
        loaded = nym.tree.deserialise_leaves(tmp_path / "tree", like)
        assert loaded["layer"].weight.sharding.spec == jax.P("model", "data")
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]
    assert jax.tree.structure(loaded) == jax.tree.structure(tree)
    assert all(map(np.array_equal, get_bits(loaded), get_bits(tree)))
    assert (loaded["rate"], loaded["step"]) == (0.5, 3)
    assert [(type(x), x.dtype) for x in list_arrays(loaded)] == [(type(x), x.dtype) for x in list_arrays(sharded)]


def test_another_order_is_undone_where_equinox_returns_it_transposed(tmp_path, draw):
    saved, like = {"weight": draw(mlp=8, embed=8)}, {"weight": nym.zeros((Embed, Mlp))}
    eqx.tree_serialise_leaves(tmp_path / "raw.eqx", saved)
    assert not (eqx.tree_deserialise_leaves(tmp_path / "raw.eqx", like)["weight"] == saved["weight"]).all()
    nym.tree.serialise_leaves(tmp_path / "tree", saved)
    loaded = nym.tree.deserialise_leaves(tmp_path / "tree", eqx.filter_eval_shape(lambda: like))
    assert loaded["weight"].names == ("embed", "mlp") and (loaded["weight"] == saved["weight"]).all()


def test_leaves_that_do_not_fit_are_listed(tmp_path, getkey):
    tree = {"a": nym.ones((Embed, Mlp)), "b": jnp.ones(3), "c": jax.random.key(1), "d": nym.ones(Embed)}
    like = {"a": nym.ones((Embed, nym.Axis("pos", 8))), "b": jnp.ones(4), "c": jax.random.key(1, impl="rbg")}
    tree, like = {**tree, "rate": 1, "step": 3}, {**like, "rate": 1.0, "count": 0}
    nym.tree.serialise_leaves(tmp_path / "tree", tree)
    with refusal("the leaves do not fit") as caught:
        nym.tree.deserialise_leaves(tmp_path / "tree", {**like, "e": jnp.ones(1)})
    assert str(caught.value).splitlines()[1:] == [
        "  ['count'] is not in the file",
        "  ['e'] is not in the file",
        "  ['d'] is not in the tree",
        "  ['step'] is not in the tree",
        "  ['a'] was saved as float32 (embed: 8, mlp: 8), in the tree it is float32 (embed: 8, pos: 8)",
        "  ['b'] was saved as float32 (3,), in the tree it is float32 (4,)",
        "  ['c'] was saved as threefry2x32 (), in the tree it is rbg ()",
        "  ['rate'] was saved as int, in the tree it is float",
    ]


def test_arrays_without_data_are_errors_and_leave_no_file(tmp_path):
    donated = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    shape = nym.NamedArray(jax.ShapeDtypeStruct((8,), jnp.float32), "embed")
    for array, message in ((shape, "is a shape without data"), (donated, "was donated to a compiled function")):
        with refusal(f"['a'] {message}; save "):
            nym.tree.serialise_leaves(tmp_path / "tree", {"a": array})
        with refusal(f"'a' {message}; save "):
            nym.state_dict.save_safetensors({"a": array}, tmp_path / "tree")
    with refusal("['a'] is traced; arrays are saved outside of `jit`"):
        jax.jit(lambda x: nym.tree.serialise_leaves(tmp_path / "tree", {"a": x}))(jnp.ones(3))
    assert not list(tmp_path.iterdir())


def test_leaves_of_64_bits_are_numpy_arrays_or_refused(tmp_path):
    saved = nym.NamedArray(np.array([[2**40 + 7, 1], [2, 3]]), ("mlp", "embed"))
    nym.tree.serialise_leaves(tmp_path / "tree", {"a": saved})
    loaded = nym.tree.deserialise_leaves(tmp_path / "tree", {"a": nym.NamedArray(saved.array, ("embed", "mlp"))})["a"]
    assert isinstance(loaded.array, np.ndarray) and loaded.tolist() == saved.array.T.tolist()
    like = {"a": nym.NamedArray(jax.ShapeDtypeStruct((2, 2), np.int64), saved.names)}
    with refusal(
        "['a'] is int64 in the tree, and JAX has int32 for that without `jax_enable_x64`; set that option, or"
    ):
        nym.tree.deserialise_leaves(tmp_path / "tree", like)
    with jax.enable_x64(True):
        assert nym.tree.deserialise_leaves(tmp_path / "tree", like)["a"].tolist() == saved.tolist()


def test_wrong_arguments_are_errors_that_name_them():
    wrong: Any = nym.tree  # without types, because every call here is wrong
    path_first = "takes a path or a binary file first and then the tree, not"
    for call, message in (
        (lambda: wrong.serialise_leaves({"a": 1}, "tree"), f"`serialise_leaves` {path_first}"),
        (lambda: wrong.deserialise_leaves({"a": 1}, "tree"), f"`deserialise_leaves` {path_first}"),
        (lambda: wrong.deserialise_leaves(None, {"a": 1}), f"{path_first} None"),
        (lambda: wrong.serialise_leaves(io.StringIO(), {"a": 1}), "takes a binary file; open it in mode 'wb' or 'rb'"),
    ):
        with refusal(message, TypeError):
            call()


def test_python_objects_are_refused_before_anything_is_written(tmp_path):
    with refusal("['a'] has Python objects, which cannot be read again; leave it out"):
        nym.tree.serialise_leaves(tmp_path / "tree", {"a": np.array([None])})
    assert not list(tmp_path.iterdir())


def test_headers_that_are_no_json_are_errors(tmp_path):
    too_deep = "(maximum recursion depth|Stack overflow)"  # of Python before 3.14, and since
    for header, message in ((b"[]", "its header is no object in JSON"), (b"[" * 100_000, too_deep)):
        checksum = zlib.crc32(header).to_bytes(4, "little")
        text = b"axonym leaves 1\n" + len(header).to_bytes(8, "little") + checksum + header
        (tmp_path / "tree").write_bytes(text)
        with pytest.raises(ValueError, match=f"tree' is damaged or truncated: {message}"):
            nym.tree.deserialise_leaves(tmp_path / "tree", {"a": 1})


def test_open_files_are_written_and_read_from_where_they_are(draw):
    trees, file = [{"a": draw(embed=3)}, {"b": draw(mlp=2, embed=2)}], io.BytesIO()
    for tree in trees:
        nym.tree.serialise_leaves(file, tree)
    file.seek(0)
    for tree in trees:
        loaded = nym.tree.deserialise_leaves(file, jax.tree.map(jnp.zeros_like, tree))
        assert all(map(np.array_equal, get_bits(loaded), get_bits(tree)))
    for damaged in (file.getvalue()[:20], file.getvalue()[:-1]):
        with refusal("'the file' is damaged or truncated"):
            stream = io.BytesIO(damaged)
            for tree in trees:
                nym.tree.deserialise_leaves(stream, tree)


def test_damaged_files_are_errors_with_their_names(tmp_path):
    tree, path = {"a": nym.ones(Embed)}, tmp_path / "tree"
    nym.tree.serialise_leaves(path, tree)
    whole = path.read_bytes()
    header = whole.index(b"\x93NUMPY")
    for size in (0, 20, header - 1, header + 3, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"tree' is (damaged or truncated: |not a file of `serialise_leaves`, or)"):
            nym.tree.deserialise_leaves(path, tree)
    for index in range(header):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(ValueError, match=r"tree' is (damaged or truncated: |not a file of `serialise_leaves`, or)"):
            nym.tree.deserialise_leaves(path, tree)
    with refusal("nothing", FileNotFoundError):
        nym.tree.deserialise_leaves(tmp_path / "nothing", tree)
