"""Mutable arrays: what is read and written by name is what an array of the same elements would give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import axonym as nym
from axonym import Axis, dslice
from tests.refusals import refusal


base = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
x = nym.named(base, ("batch", "pos", "embed"))
row = np.array([True, False, True])

INDICES = {
    "integer": {"pos": 1},
    "negative": {"embed": -1, "batch": np.int64(0)},
    "jax": {"pos": jnp.array(2)},
    "named scalar": {"pos": nym.named(2, ())},
    "slice": {"pos": slice(1, None), "embed": slice(0, 4, 2)},
    "integer and slice": {"batch": 1, "pos": slice(0, 2)},
    "backwards": {"pos": slice(None, None, -1), "batch": 0},
    "dslice": {"pos": dslice(1, 2), "batch": 1},
    "list": {"embed": [3, 0]},
    "named": {"pos": nym.named([2, 0, 1], "i"), "embed": 1},
    "two": {"pos": nym.named([2, 0, 1], "i"), "embed": nym.named([[1, 2]], ("j", "k"))},
    "aligned": {"pos": nym.named([2, 0], "batch")},
    "mask": {"pos": row},
    "nothing": {},
}


def test_elements_are_those_of_an_array():
    @jax.jit
    def compute(x):
        results = {}
        for kind, index in INDICES.items():
            ref = nym.new_ref(x)
            picked = ref[index], nym.get(ref, index), nym.swap(ref, index, -1.0)
            swapped = nym.freeze(ref)
            ref = nym.new_ref(x)
            ref[index] = 5
            results[kind] = picked, x[index], (swapped, nym.freeze(ref)), (x.at[index].set(-1.0), x.at[index].set(5))
        return results

    for kind, (picked, expected, written, expected_written) in compute(x).items():
        for result, other in zip((*picked, *written), (*[expected] * 3, *expected_written), strict=True):
            assert isinstance(result, nym.NamedArray) and result.names == other.names, kind
            assert np.array_equal(result.array, other.array) and result.dtype == jnp.float32, kind


def test_a_ref_has_the_axes_of_its_array():
    ref = nym.new_ref(x)
    assert ref.names == x.names and ref.shape == x.shape and ref.axes == x.axes and ref.ndim == 3
    assert ref.dtype == jnp.float32 and repr(ref) == "NamedRef(float32, batch: 2, pos: 3, embed: 4)"
    assert isinstance(ref.ref, jax.Ref)


def test_values_are_lined_up_by_name():
    value = nym.named(base[0, :2].T, ("embed", "batch"))
    ref = nym.new_ref(x)
    ref["pos", 1] = value
    assert np.array_equal(ref["pos", 1].array, base[0, :2])
    ref["pos", 0:2] = nym.arange(Axis("embed", 4))
    assert np.array_equal(ref["pos", 1, "batch", 0].array, [0, 1, 2, 3])
    ref["pos", 0:2] += 1.0
    assert np.array_equal(ref["pos", 0, "batch", 1].array, [1, 2, 3, 4])
    ref["pos", dslice(1, 2)] = value
    assert np.array_equal(ref["pos", 2].array, base[0, :2])
    for everything in (..., (), {}):
        ref[everything] = value
        assert np.array_equal(ref[everything]["pos", 2].array, base[0, :2])
    assert np.array_equal(nym.get(ref).array, nym.get(ref, ...).array)
    scalar = nym.new_ref(nym.named(3, ()))
    scalar[...] += 1
    assert scalar[...].item() == 4 and nym.swap(scalar, None, 7).item() == 4


def test_gradients_through_refs():
    def loss(x):
        ref = nym.new_ref(x)
        ref["pos", 1] = ref["pos", 0] * 3
        ref["pos", nym.named([2, 2], "i"), "batch", 0] = 0.0
        return jnp.sum(nym.freeze(ref).array * base)

    expected = base.copy()
    expected[:, 0] += 3 * base[:, 1]
    expected[:, 1] = 0
    expected[0, 2] = 0
    assert np.allclose(jax.grad(loss)(x).array, expected)


def test_sharded_refs(mapped, draw):
    y, value = draw(batch=8, pos=3, embed=4), draw(embed=4)
    sharded = nym.shard(y)
    ref = nym.new_ref(sharded)

    @jax.jit
    def step(ref, i, value):
        ref["pos", 0] = value
        ref["batch", i] = 2.0
        ref["embed", dslice(i, 2), "pos", 1] = 3.0
        return ref["batch", i], ref["batch", 1:5]

    row, rows = step(ref, 1, nym.shard(value))
    expected = y.at["pos", 0].set(value).at["batch", 1].set(2.0).at["embed", 1:3, "pos", 1].set(3.0)
    whole = np.asarray(expected)
    assert np.array_equal(ref[...].array, whole)
    assert np.array_equal(row.array, whole[1]) and np.array_equal(rows.array, whole[1:5])
    ref[...] = value
    assert np.array_equal(ref["pos", 2].array, np.broadcast_to(np.asarray(value), (8, 4)))
    if mapped.axis_types[0] == AxisType.Explicit:
        assert nym.freeze(ref).sharding.spec == jax.P("data", None, "model")


SHOWN = "(batch: 2, pos: 3, embed: 4)"
LACK = "which the chosen elements (batch: 2, embed: 4) lack"
WRONG_WRITES = [
    (("pos", 3), 0.0, IndexError, f"index 3 of axis 'pos' of {SHOWN} is out of range"),
    (("pos", 0), nym.ones({"pos": 3}), ValueError, f"the value has axes (pos), {LACK}"),
    (..., nym.ones({"embed": 3}), ValueError, "axis 'embed' has size 4 and size 3"),
    (("pos", 0), np.ones(4), TypeError, "A plain array of shape (4,) has no axis names"),
    (("pos", 0), 1j, TypeError, "Elements of float32 cannot take values of complex64"),
]


@pytest.mark.parametrize(("items", "value", "kind", "text"), WRONG_WRITES)
def test_wrong_writes(items, value, kind, text):
    ref = nym.new_ref(x)
    for write in (ref.__setitem__, lambda items, value: nym.swap(ref, items, value)):
        with refusal(text, kind):
            write(items, value)
    assert np.array_equal(ref[...].array, base)


def test_what_is_no_ref_or_no_named_array():
    with refusal("A named array is needed, not an array of shape (3,)", TypeError):
        nym.new_ref(jnp.ones(3))  # pyright: ignore[reportArgumentType]
    for use in (nym.get, nym.freeze, lambda ref: nym.swap(ref, ..., 0.0)):
        with pytest.raises(TypeError, match=r"A `NamedRef` is needed, not an array .*; make one with `axonym.new_ref"):
            use(x)  # pyright: ignore[reportArgumentType]


def test_elements_of_reduced_refs_can_be_read():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))

    @jax.jit
    def read(array: jax.Array) -> jax.Array:
        reduced = jax.reshard(array, PartitionSpec(None, reduced={"data"}))
        return nym.new_ref(nym.NamedArray(reduced, ("pos",)))["pos", 1].array

    with jax.set_mesh(mesh):
        assert read(jnp.arange(4)) == 1
