"""Everything that does not fit is an error before anything is read or written, and all of it is listed at once."""

import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


class Scale(eqx.Module):
    weight: nym.NamedArray
    eps: float = eqx.field(static=True)
    activation: Any = jax.nn.relu


def make_state(eps: float = 1e-5, activation: Any = jax.nn.relu) -> dict[str, Any]:
    return {
        "norm": Scale(nym.ones({"embed": 4, "mlp": 2}), eps, activation),
        "step": 3,
        "key": jax.random.key(0),
        "plain": jnp.ones(3),
        "none": None,
    }


MESH = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    with jax.set_mesh(None):
        nym.checkpoint.save(path, make_state(), 7)
    return path


def test_all_that_differs_is_listed_with_both_sides(folder: Path) -> None:
    like = {
        "norm": Scale(nym.ones({"embed": 5, "mlp": 2}), 1e-5),
        "stop": 3,
        "key": jnp.ones(2),
        "plain": nym.ones({"embed": 3}),
        "none": jnp.ones(1),
    }
    with pytest.raises(ValueError, match="does not fit") as raised:
        nym.checkpoint.restore(folder, like)
    lines = [line.strip() for line in str(raised.value).splitlines()]
    assert lines == [
        f"the checkpoint of step 7 in {folder} does not fit:",
        "['key'] is an array of shape (2,) and float32 here and random keys of shape () and threefry2x32 in the "
        "checkpoint",
        "['none'] is an array of shape (1,) and float32 here and None in the checkpoint",
        "['norm'].weight has axes (embed: 5, mlp: 2) here and axes (embed: 4, mlp: 2) in the checkpoint",
        "['plain'] has axes (embed: 3) here and shape (3,) in the checkpoint",
        "['stop'] is not in the checkpoint; did you mean \"['step']\"?",
        "['step'] is in the checkpoint and not in `like`; did you mean \"['stop']\"?",
        "`strict=False` leaves out what is not in `like`",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"plain": jnp.ones(3, "bfloat16")},
            r"\['plain'\] is bfloat16 here and float32 in the checkpoint; restore float32 and",
        ),
        ({"plain": jnp.ones((1, 3))}, r"\['plain'\] has shape \(1, 3\) here and shape \(3,\) in the checkpoint"),
        ({"step": 3.0}, r"\['step'\] is float 3.0 here and int 3 in the checkpoint"),
        ({"key": jax.random.key(0, impl="rbg")}, r"\['key'\] is rbg here and threefry2x32 in the checkpoint"),
        (
            {"norm": Scale(nym.ones({"embed": 4, "mpl": 2}), 1e-5)},
            r"axes \(embed: 4, mpl: 2\) here and axes \(embed: 4,",
        ),
    ],
)
def test_one_leaf_that_differs(folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nym.checkpoint.restore(folder, make_state() | change)


def test_part_of_a_checkpoint(folder: Path) -> None:
    part = {"plain": jnp.zeros(3)}
    assert np.array_equal(nym.checkpoint.restore(folder, part, strict=False)["plain"], np.ones(3))
    with pytest.raises(ValueError, match=r"\['norm'\].weight is in the checkpoint and not in `like`"):
        nym.checkpoint.restore(folder, part)


def test_a_state_below_another_path_is_found(folder: Path) -> None:
    scale = Scale(nym.ones({"embed": 4, "mlp": 2}), 1e-5)
    hint = r"\.weight is not in the .*\n  the checkpoint has what is missing below \['norm'\]; pass `{'norm': like}`"
    for strict in (True, False):
        with pytest.raises(ValueError, match=f"(?s){hint}"):
            nym.checkpoint.restore(folder, scale, strict=strict)
    with pytest.raises(ValueError, match="does not fit") as raised:
        nym.checkpoint.restore(folder, {"other": scale}, strict=False)
    assert "below" not in str(raised.value)


def test_other_static_fields_are_a_warning(folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"\.eps is 0\.1 here and was 1e-05\n.*\.activation is tanh here and was relu"):
        state = nym.checkpoint.restore(folder, make_state(0.1, jnp.tanh))
    assert state["norm"].eps == 0.1 and state["norm"].activation is jnp.tanh


def test_shardings_that_do_not_fit(folder: Path, mesh: jax.sharding.Mesh) -> None:
    with pytest.raises(ValueError, match=r"\['norm'\].weight: .*'mlp' has size 2, which is not divisible"):
        nym.checkpoint.restore(folder, make_state(), mapping={"mlp": "data"})
    with pytest.raises(ValueError, match="a mesh with devices"):
        nym.checkpoint.restore(folder, make_state(), mesh=mesh.abstract_mesh)
    with jax.set_mesh(None), pytest.raises(ValueError, match="`mapping` needs a mesh to restore onto"):
        nym.checkpoint.restore(folder, make_state(), mapping={"mlp": "data"})


def test_what_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no checkpoint in {tmp_path}"):
        nym.checkpoint.restore(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 5 in .*, only of 7"):
        nym.checkpoint.inspect(folder, 5)
    with pytest.raises(ValueError, match="has no state of the data; restore it without `data`"):
        nym.checkpoint.restore(folder, make_state(), data=iter(()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError, match=rf"no checkpoint in .*; .*: pass {folder} and `step=7`"):
        nym.checkpoint.restore(folder / "7")


def test_arguments_that_make_no_sense(folder: Path) -> None:
    with pytest.raises(TypeError, match="`data` is a tuple_iterator without `get_state`; pass an `axonym"):
        nym.checkpoint.save(folder, {"step": 8}, 8, data=iter(()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"not an array of shape \(\); convert it with `int\(step\)`"):
        nym.checkpoint.save(folder, {"step": 8}, jnp.array(8))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`axis_order` is 'transpose' or 'error', not 'ignore'"):
        nym.checkpoint.restore(folder, axis_order="ignore")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`fallback` chooses among the newest"):
        nym.checkpoint.restore(folder, step=7, fallback=True)
    with pytest.raises(ValueError, match="`max_to_keep` must be at least 1, not 0"):
        nym.checkpoint.Checkpointer(folder, max_to_keep=0)
    with pytest.raises(ValueError, match="`folder` is a path, not the URL 'gs://bucket/run'"):
        nym.checkpoint.Checkpointer("gs://bucket/run")
    with pytest.raises(ValueError, match=r"`timeout` is at least a second, not 0\.1"):
        nym.checkpoint.Checkpointer(folder, timeout=0.1)
    with pytest.raises(TypeError, match=r"a path, not a dict; the order of arguments is `save\(folder, state, step\)`"):
        nym.checkpoint.save({"step": 8}, folder, 8)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"a path, not a dict; the order of arguments is `restore\(folder, like\)`"):
        nym.checkpoint.restore({"step": 8}, folder)  # pyright: ignore[reportArgumentType]
    for step in (-1, 2.0, True):
        with pytest.raises(ValueError, match="`step` is an integer from 0 on, not"):
            nym.checkpoint.save(folder, {}, step)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda ck, f: ck.Checkpointer(f, 1.5), TypeError, "`max_to_keep` must be an integer, not 1.5"),
        (lambda ck, f: ck.Checkpointer(f, True), TypeError, "`max_to_keep` must be an integer, not True"),
        (lambda ck, f: ck.Checkpointer(f, "2"), TypeError, "`max_to_keep` must be an integer, not '2'"),
        (lambda ck, f: ck.save(f, {}, 9, max_to_keep="2"), TypeError, "`max_to_keep` must be an integer, not '2'"),
        (lambda ck, f: ck.Checkpointer(2, f), TypeError, "`folder` is a path, not a int; the order of arguments is"),
        (lambda ck, f: ck.Checkpointer(f, timeout="x"), TypeError, "`timeout` is a number of seconds, not 'x'"),
        (lambda ck, f: ck.Checkpointer(f, timeout=float("nan")), ValueError, "`timeout` is a number of .* not nan"),
        (lambda ck, f: ck.Checkpointer(f, read_only=1), TypeError, "`read_only` must be True or False, not 1"),
        (lambda ck, f: ck.Checkpointer(f / "7/checksums.json"), NotADirectoryError, "json is a file; pass the fold"),
        (lambda ck, f: ck.restore(f / "7/checksums.json"), NotADirectoryError, "json is a file; pass the folder"),
        (lambda ck, f: ck.save("", {}, 9), ValueError, r"`folder` is empty; pass the path of a folder, which is '\.'"),
        (lambda ck, f: ck.inspect(""), ValueError, "`folder` is empty; pass"),
        (lambda ck, f: ck.restore(""), ValueError, "`folder` is empty; pass"),
        (lambda ck, f: ck.list_steps(7), TypeError, r"is `list_steps\(folder\)`"),
        (lambda ck, f: ck.inspect(7, f), TypeError, r"a path, not a int; .* is `inspect\(folder, step\)`"),
        (lambda ck, f: ck.inspect(f, "7"), ValueError, "`step` is an integer from 0 on, not '7'"),
        (lambda ck, f: ck.inspect(f, True), ValueError, "`step` is an integer from 0 on, not True"),
        (lambda ck, f: ck.restore(f, step=True), ValueError, "`step` is an integer from 0 on, not True"),
        (lambda ck, f: ck.restore(f, step=7.0), ValueError, "`step` is an integer from 0 on, not 7.0"),
        (lambda ck, f: ck.restore(f, 7), ValueError, "`like` is a tree .*, not 7; pass a step as `step=7`"),
        (lambda ck, f: ck.restore(f, strict="no"), TypeError, "`strict` must be True or False, not 'no'"),
        (lambda ck, f: ck.restore(f, fallback=7), TypeError, "`fallback` must be True or False, not 7"),
        (lambda ck, f: ck.restore(f, mesh="data"), TypeError, "`mesh` is a mesh with devices, not 'data'"),
        (lambda ck, f: ck.restore(f, mapping="data", mesh=MESH), TypeError, "mapping.*data"),
        (lambda ck, f: ck.restore(f, data=3), ValueError, "has no state of the data; restore it without `data`"),
        (lambda ck, f: ck.save(f, {}, 9, data=3), TypeError, "`data` is a int without `get_state`"),
        (lambda ck, f: ck.save(f, 9, {}), ValueError, r"`step` is an integer from 0 on, not {}"),
        (lambda ck, f: jax.jit(lambda: ck.restore(f))(), ValueError, "restored outside of `jit`; call this where"),
        (lambda ck, f: jax.jit(lambda: ck.save(f, {}, 9))(), ValueError, "restored outside of `jit`; call this where"),
    ],
)
def test_wrong_types_and_swapped_arguments(folder: Path, call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        call(nym.checkpoint, folder)
    assert nym.checkpoint.list_steps(folder) == [7] and not [*folder.glob(".axonym*")]


def test_a_closed_checkpointer_reads_and_does_not_save(tmp_path: Path) -> None:
    checkpointer = nym.checkpoint.Checkpointer(tmp_path)
    checkpointer.save({"step": 1}, 1)
    for _ in range(2):
        checkpointer.close()
    assert checkpointer.steps == [1] and checkpointer.restore() == {"step": 1}
    with pytest.raises(ValueError, match=f"the `Checkpointer` of {tmp_path} is closed; make another one to save"):
        checkpointer.save({"step": 2}, 2)


def test_64_bits_are_not_narrowed_in_silence(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        state = {
            "count": jnp.int64(2**40 + 7),
            "mean": nym.named(jnp.full(2, 1 / 3), "embed"),
            "low": jnp.ones(1, "f4"),
        }
        nym.checkpoint.save(tmp_path, {**state, "numpy": np.full(1, 2**40)}, 1)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    for like in (None, {**shapes, "numpy": np.zeros(1, np.int64)}):
        with pytest.raises(ValueError, match="elements of 64 bits") as raised:
            nym.checkpoint.restore(tmp_path, like)
        assert [line.strip() for line in str(raised.value).splitlines()[1:]] == [
            "['count'] would narrow int64 to int32, since `jax_enable_x64` is off",
            "['mean'] would narrow float64 to float32, since `jax_enable_x64` is off",
            "`jax.config.update('jax_enable_x64', True)` keeps all bits",
            "a `like` with NumPy arrays of these shapes and element types restores NumPy arrays",
        ]
    narrow = {"count": jnp.int32(0)}
    with pytest.raises(ValueError, match=r"\['count'\] is int32 here and int64 in the checkpoint"):
        nym.checkpoint.restore(tmp_path, narrow, strict=False)
    like = {"count": np.zeros((), np.int64), "mean": nym.NamedArray(np.zeros(2), ("embed",)), "low": shapes["low"]}
    restored = nym.checkpoint.restore(tmp_path, {**like, "numpy": np.zeros(1, np.int64)})
    assert (
        restored["count"] == 2**40 + 7 and restored["mean"].array.tolist() == [1 / 3] * 2 and restored["numpy"] == 2**40
    )
    assert isinstance(restored["low"], jax.Array)
    with jax.enable_x64(True):
        assert int(nym.checkpoint.restore(tmp_path)["count"]) == 2**40 + 7


def test_states_that_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)
    array = jnp.ones(3)
    donated(array)
    texts = np.array(["text"])
    for state, kind, message in (
        ({"a": array}, ValueError, r"\['a'\] was donated to a compiled function"),
        ({"a": jax.ShapeDtypeStruct((3,), "float32")}, ValueError, r"\['a'\] is a shape without data; save arrays"),
        ({"a": texts}, TypeError, r"\['a'\] is a NumPy array of dtype <U4; only numbers can be saved"),
        ({"a": jnp.ones(2, "uint4")}, TypeError, r"\['a'\] has elements of type uint4, which Orbax cannot store"),
    ):
        with pytest.raises(kind, match=message):
            nym.checkpoint.save(tmp_path, state, 1)
    with pytest.raises(ValueError, match=r"\['x'\] is traced; checkpoints are saved and restored outside of `jit`"):
        jax.jit(lambda x: nym.checkpoint.save(tmp_path, {"x": x}, 1))(jnp.ones(2))
    with pytest.raises(ValueError, match="has a checkpoint of step 7 already; save later steps, or remove it first"):
        nym.checkpoint.save(folder, make_state(), 7)
    assert nym.checkpoint.list_steps(tmp_path) == []


class Data:
    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize("state", [{"epoch": 2, "at": [1, 2.5, None]}, b"\x00\xff"])
def test_state_of_the_data_is_given_back(state: Any, tmp_path: Path) -> None:
    nym.checkpoint.save(tmp_path, {"step": 1}, 1, data=Data(state))
    data = Data(None)
    assert nym.checkpoint.restore(tmp_path, data=data) == {"step": 1}
    assert data.state == state
    with pytest.raises(TypeError, match="it must be bytes or writable as JSON"):
        nym.checkpoint.save(tmp_path, {"step": 1}, 2, data=Data({1j: 2}))


def test_without_orbax_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    monkeypatch.delitem(sys.modules, "axonym.checkpoint._orbax_handler", raising=False)
    with pytest.raises(ImportError, match=r"install `axonym\[io\]`"):
        nym.checkpoint.save(tmp_path, {}, 1)
