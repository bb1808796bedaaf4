import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.refusals import refusal


@pytest.mark.parametrize("bitorder", ["big", "little"])
def test_bits_are_packed_along_the_axis_and_taken_out_again(draw, bitorder):
    x = draw.integers(0, 2, batch=2, bit=9, pos=3)
    packed = nym.packbits(x, "bit", bitorder=bitorder)
    assert (packed.shape, packed.names, packed.dtype) == ({"batch": 2, "bit": 2, "pos": 3}, x.names, jnp.uint8)
    np.testing.assert_array_equal(packed.array, np.packbits(np.asarray(x), 1, bitorder))
    np.testing.assert_array_equal(nym.unpackbits(packed, "bit", count=9, bitorder=bitorder).array, x.array)


@pytest.mark.parametrize("count", [None, 10, -2, 20])
def test_as_many_bits_are_taken_out_as_are_asked_for(count):
    x = np.array([[1, 200], [7, 0]], np.uint8)
    bits = nym.unpackbits(nym.named(x, ("bit", "i")), "bit", count=count)
    np.testing.assert_array_equal(bits.array, np.unpackbits(x, 0, count))


def test_truth_values_are_packed():
    assert nym.packbits(nym.named([True, False], "i"), "i").item() == 128


def test_bits_are_those_of_integers():
    with refusal("`packbits` takes booleans or integers, the elements of (i: 2) are float32", TypeError):
        nym.packbits(nym.ones({"i": 2}), "i")
    with refusal("`unpackbits` takes `uint8`, the elements of (i: 2) are int32", TypeError):
        nym.unpackbits(nym.ones({"i": 2}, int), "i")


def test_bits_are_the_same_sharded_on_both_meshes(compute_sharded, draw):
    def pack_and_unpack(x):
        packed = nym.packbits(x, "embed")
        return packed, nym.unpackbits(packed, "embed")

    _, bits = compute_sharded(pack_and_unpack, draw.integers(0, 2, batch=4, embed=10))
    assert bits.shape == {"batch": 4, "embed": 16}
    packed = nym.packbits(nym.shard(draw.integers(0, 2, batch=4, embed=2)), "embed")
    assert (packed.shape, packed.sharding.spec[0]) == ({"batch": 4, "embed": 1}, "data")
