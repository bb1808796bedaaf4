"""Pooling: parity with Equinox and `jax.lax`, what counts in a mean, sharding, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal
from .conftest import assert_leaves_close


Embed, Batch, Height, Width = nym.make_axes(embed=4, batch=8, height=8, width=7)
KINDS = {"max_pool": eqx.nn.MaxPool2d, "mean_pool": eqx.nn.AvgPool2d, "min_pool": None}


def reference(name, **options):
    def compute(x):
        if KINDS[name] is None:
            return -compute_by(KINDS["max_pool"], -x)
        return compute_by(KINDS[name], x)

    def compute_by(kind, x):
        own = kind(kernel_size=(3, 2), **options)
        moved = x.rearrange(("batch", "embed", "height", "width"))
        return nym.named(jax.vmap(own)(moved.array), moved.names).rearrange(x.names)

    return compute


@pytest.mark.parametrize("name", KINDS)
def test_pool_is_that_of_equinox(draw, name):
    x, pool = draw(Height, Batch, Width, Embed), getattr(nym.nn, name)
    theirs = reference(name, stride=(2, 1), padding=((1, 0), (0, 1)))
    options = {"padding": {"width": (0, 1), "height": (1, 0)}, "stride": (2, 1)}
    options |= {"count_include_pad": True} if name == "mean_pool" else {}
    own = lambda x: pool({"height": 3, "width": 2}, x, **options)  # noqa: E731

    def compute(x):
        gradients = [jax.grad(lambda x, fn=fn: (fn(x) ** 2).sum().scalar())(x) for fn in (own, theirs)]
        return (own(x), theirs(x)), gradients

    for actual, expected in jax.jit(compute)(x):
        assert actual.names == expected.names and allclose(actual.array, expected.array, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_last_elements_get_a_window_if_asked_for(draw, name):
    x, pool = draw(Batch, Height, Width, Embed), getattr(nym.nn, name)
    result = pool({"height": 3, "width": 2}, x, 3, use_ceil=True)
    assert result.shape == {"batch": 8, "height": 3, "width": 3, "embed": 4}
    whole = pool({"height": 3, "width": 2}, x, 3)
    assert allclose(
        result["height", : whole.axis_size("height"), "width", : whole.axis_size("width")].array, whole.array
    )
    tail = np.asarray(x.array)[:, 6:, 6:]
    reduce = {"max_pool": np.max, "min_pool": np.min, "mean_pool": np.mean}[name]
    assert allclose(result["height", 2, "width", 2].array, reduce(tail, (1, 2)), atol=1e-6)


def test_padding_does_not_count_unless_asked_for():
    x = nym.named([1.0, 2.0, 3.0, 4.0], "i")
    result = nym.nn.mean_pool({"i": 3}, x, padding="SAME").array
    assert allclose(result, np.array([1.5, 2, 3, 3.5]))
    result = nym.nn.mean_pool({"i": 3}, x, padding="SAME", count_include_pad=True).array
    assert allclose(result, np.array([1, 2, 3, 7 / 3]))
    result = nym.nn.mean_pool({"i": 3}, x, 3, padding=1, count_include_pad=True, use_ceil=True).array
    assert allclose(result, np.array([1, 7 / 3]))
    assert (nym.nn.max_pool({"i": 3}, -x, padding=1).array < 0).all()


def test_element_types_are_kept_and_means_are_not_computed_in_them(draw):
    x = (100 + draw(nym.Axis("height", 64))).astype(jnp.bfloat16)
    result = nym.nn.mean_pool({"height": 64}, x)
    assert result.dtype == jnp.bfloat16
    assert result.array[0] == x.astype(jnp.float32).mean().array.astype(jnp.bfloat16)
    whole = nym.named(np.array([3, 1, 2], np.int32), "i")
    assert nym.nn.max_pool({"i": 2}, whole).array.tolist() == [3, 2]
    assert nym.nn.min_pool({"i": 2}, whole, padding=1).array.tolist() == [3, 1, 1, 2]
    assert nym.nn.mean_pool({"i": 2}, whole).dtype == jnp.float32
    assert nym.nn.max_pool({"i": 2}, whole > 2).array.tolist() == [True, False]


@pytest.mark.parametrize(
    ("axis_types", "mapping"),
    [("auto", {"height": "data"}), ("explicit", {"height": "data"}), ("explicit", {"batch": "data", "embed": "model"})],
)
def test_pooled_axes_can_be_sharded(request, draw, axis_types, mapping):
    x = draw(Batch, Height, Width, Embed)

    def compute(x):
        pools = [getattr(nym.nn, name) for name in KINDS]
        gradient = nym.grad(lambda x: sum((pool({"height": 2}, x, 2) ** 2).sum() for pool in pools))
        return [pool({"height": 2}, x, 2) for pool in pools], gradient(x)

    expected = jax.jit(compute)(x)
    with jax.set_mesh(request.getfixturevalue(f"{axis_types}_mesh")):
        actual = nym.named_jit(compute, mapping)(nym.shard(x, mapping))
        for result in actual[0]:
            assert result.sharding.is_equivalent_to(nym.sharding_for_axis(result.axes, mapping), 4)
        assert_leaves_close(actual, expected)


def test_gradients_of_overlapping_windows_without_a_mapping(auto_mesh, draw):
    x = draw(Batch, Height)
    compute_gradient = jax.jit(nym.grad(lambda x: (nym.sin(nym.nn.max_pool({"height": 3}, x, padding=1)) ** 2).sum()))
    assert_leaves_close(compute_gradient(nym.shard(x, {"height": "data"}, auto_mesh)), compute_gradient(x))


def test_errors_name_the_function_and_the_axes():
    x = nym.ones((Batch, Height))
    with refusal("mean_pool: axis 'height' of size 8, padded to 8, is shorter than the window of 9; increase"):
        nym.nn.mean_pool({"height": 9}, x)
    with refusal("min_pool: `Window` along axis 'height' must be at least 1"):
        nym.nn.min_pool({"height": 0}, x)
    with refusal("max_pool: `padding` along axis 'height' must be less than the window of 2, not 2"):
        nym.nn.max_pool({"height": 2}, x, padding=2)
