"""What a checkpoint does not fit is an error before anything is read, and all of it is listed at once."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


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


def test_a_leaf_that_differs_is_an_error_with_both_sides(folder: Path) -> None:
    for change, message in (
        (
            {"plain": np.ones(3, jnp.bfloat16)},
            "['plain'] is bfloat16 here and float32 in the checkpoint; restore float32",
        ),
        ({"plain": np.ones((1, 3), "f")}, "['plain'] has shape (1, 3) here and shape (3,) in the checkpoint"),
        ({"step": 3.0}, "['step'] is float 3.0 here and int 3 in the checkpoint"),
        ({"key": jax.random.key(0, impl="rbg")}, "['key'] is rbg here and threefry2x32 in the checkpoint"),
    ):
        with refusal(message):
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
