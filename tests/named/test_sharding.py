"""Compiled functions and the mapping in force, and operands that lie anywhere."""

import jax
import numpy as np

import axonym as nym


def test_another_value_in_force_is_traced_anew_and_the_same_one_is_not():
    traced, x = [], nym.ones({"a": 2, "b": 3})
    fn = jax.jit(lambda x: traced.append(nym.current_mapping()) or x.sum("a"))
    for mapping in ({"a": "data"}, {"a": "model"}, {"a": "data"}):
        with nym.axis_mapping(mapping):
            assert fn(x).names == ("b",)
    fn(x)
    assert traced == [{"a": "data"}, {"a": "model"}, None]


def test_results_are_right_wherever_operands_lie(mapped):
    plain = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    x = nym.shard(nym.named(plain, ("batch", "embed")))
    whole = nym.named(jax.device_put(np.full_like(plain, 9), jax.NamedSharding(mapped, jax.P())), x.names)

    def compute(x, y):
        turned = x.rename({"batch": "embed", "embed": "batch"}).broadcast_to({"embed": 8, "batch": 4, "pos": 2})
        window = x.at["batch", nym.dslice(0, 4)].set(nym.shard(y["batch", 0:4]))
        return nym.where(x > 3, x, y), nym.maximum(x, y), window, turned["pos", 1]

    expected = np.where(plain > 3, plain, 9), np.maximum(plain, 9), np.vstack([np.full((4, 4), 9), plain[4:]]), plain
    for results in (jax.jit(compute)(x, whole), compute(x, whole)):
        for result, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.array, other)
