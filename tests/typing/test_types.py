"""What a type checker infers for named arrays: pyright checks the assertions here, and pytest runs them."""

from collections.abc import Mapping
from typing import Any, assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
from axonym import Axis, AxisSelector, NamedArray, axis


A, B = nym.make_axes(a=2, b=3)
x = nym.ones((A, B))
v = nym.ones(B)
plain = jnp.ones(3)


def test_creation():
    assert_type(nym.named(plain, "b"), NamedArray)
    assert_type(nym.named([1, 2], Axis("a", 2)), NamedArray)
    assert_type(nym.arange(A), NamedArray)


def test_properties():
    assert_type(x.shape, nym.Shape)
    assert_type(x.shape["a"], int)
    assert_type(x.shape[A] + x.shape[0], int)
    assert_type(x.shape[1:], tuple[int, ...])
    assert_type(x.axes, tuple[Axis, ...])
    assert_type(x.resolve_axis("a"), Axis)
    assert_type(x.array, jax.Array)
    assert_type(nym.make_axes(a=2), tuple[Axis, ...])


def test_operators():
    assert_type(x + v, NamedArray)
    assert_type(-x, NamedArray)
    assert_type(x < v, NamedArray)
    assert_type(x == v, NamedArray)
    assert_type((x > 0) & (x < 2), NamedArray)
    assert_type(~(x > 0), NamedArray)


def test_elementwise_and_reductions():
    assert_type(nym.exp(x), NamedArray)
    assert_type(nym.exp(plain), jax.Array)
    assert_type(nym.add(1.0, x), NamedArray)
    assert_type(nym.clip(x, 0.0, v), NamedArray)
    assert_type(nym.where(x > 0, x, 0.0), NamedArray)
    assert_type(nym.where(plain > 0, plain, 0.0), jax.Array)
    assert_type(x.max((A, "b")), NamedArray)
    assert_type(x.sum("a", where=v > 0), NamedArray)
    assert_type(nym.softmax(x, "b"), NamedArray)


def test_shapes_and_products():
    assert_type(x.rearrange(("b", ...)), NamedArray)
    assert_type(x.rename({A: Axis("c", 2)}), NamedArray)
    assert_type(x.flatten_axes(("a", "b"), "c"), NamedArray)
    assert_type(x.unbind("a"), tuple[NamedArray, ...])
    assert_type(x.split("a", [Axis("c", 1), Axis("d", 1)]), tuple[NamedArray, ...])
    assert_type(nym.dot(x, v, x, axis=(B,), out_axes=("a", ...)), NamedArray)
    assert_type(x.dot(v, axis="b"), NamedArray)


def test_indexing():
    assert_type(x["a", 0, B, 1:2], NamedArray)
    assert_type(nym.take(x, "a", [0, 1]), NamedArray)
    assert_type(x.at["a", 0].set(0.0), NamedArray)


def test_all_kinds_of_indices(selection: nym.AxisSelection | None = "b", items: Any = ("a", 0)):
    i: Any = 0
    chosen: dict[str, Any] = {"a": 0}
    for name in x.names:
        assert_type(x[name, i], NamedArray)
    for index in (0, np.int32(0), jnp.int32(0), [0, 1], range(2), [True, False], np.arange(2), jnp.arange(2), slice(1)):
        assert_type(x["a", index], NamedArray)
    assert_type(x[chosen], NamedArray)
    assert_type(x[{"a": 0, B: slice(2)}], NamedArray)
    assert_type(x[items], NamedArray)
    assert_type(x[next(iter(chosen.items()))], NamedArray)
    assert_type(x["a", nym.named([0, 1], "n"), "b", nym.ds(i, 2)], NamedArray)
    assert_type(nym.dot(x, v, axis=selection), NamedArray)


def scale(row: NamedArray, factor: float) -> NamedArray:
    return row * factor


def step(carry: NamedArray, row: NamedArray) -> tuple[NamedArray, NamedArray]:
    return carry + row, carry


def add(carry: NamedArray, row: NamedArray) -> NamedArray:
    return carry + row


def total(row: NamedArray) -> NamedArray:
    return row.sum()


def test_transforms():
    assert_type(nym.vmap(scale, ("a", B))(x, 2.0), NamedArray)
    assert_type(nym.scan(step, "a")(v, x), tuple[NamedArray, NamedArray])
    assert_type(nym.fold(add, "a")(v, x), NamedArray)
    assert_type(nym.map(scale, "a")(x, 2.0), NamedArray)
    assert_type(nym.value_and_grad(total)(x), tuple[NamedArray, Any])


def test_array_methods_pairs_and_choices():
    assert_type(x.astype(jnp.bfloat16), NamedArray)
    assert_type(x.sum().item(), Any)
    assert_type(float(x.sum()), float)
    assert_type(nym.frexp(x), tuple[NamedArray, NamedArray])
    assert_type(divmod(x, 2.0), tuple[NamedArray, NamedArray])
    assert_type(nym.add(plain, 1.0), jax.Array)


def test_more_operations():
    assert_type(nym.einsum("a b, b -> a", x, v), NamedArray)
    assert_type(nym.quantile(x, 0.5, "b"), NamedArray)
    assert_type(nym.top_k(x, "b", 2), tuple[NamedArray, NamedArray])
    assert_type(x.matches_axes("a ..."), bool)


PARTIAL: Mapping[str, int | None] = {"a": 2, "b": None}


def test_axes():
    assert_type(nym.axis_name("a"), str)
    assert_type(nym.axis_name({"a": 2}), tuple[str, ...])
    assert_type(axis.resolve_axis((A, B), "a"), Axis)
    assert_type(axis.resolve_axis((A, B), ("a", B)), tuple[Axis, ...])
    assert_type(axis.resolve_axis((A, B), {"a": None}), dict[str, int])
    assert_type(axis.unsize_axes((A, B)), tuple[AxisSelector, ...])
    assert_type(axis.unsize_axes({"a": 2}), dict[str, int | None])
    assert_type(axis.union_axes(nym.ones(A).shape, B), dict[str, int])
    assert_type(axis.union_axes(A, {"b": 3}), tuple[Axis, ...])
    assert_type(axis.union_axes(PARTIAL, "c"), tuple[AxisSelector, ...] | Mapping[str, int | None])
    assert_type(axis.without_axes({"a": 2}, ("a", "c")), dict[str, int])
    assert_type(axis.replace_axis((A, B), "a", {"c": 2, "d": 1}), tuple[Axis, ...])
    assert_type(axis.rearrange_for_partial_order(("b", ...), {"a": 2, "b": 3}), dict[str, int])


def test_namespaces():
    square = nym.ones({"i": 2, "j": 2})
    key = jax.random.key(0)
    assert_type(nym.linalg.inv(square + nym.eye(Axis("i", 2), Axis("j", 2)), "i", "j"), NamedArray)
    assert_type(nym.linalg.slogdet(square, "i", "j"), tuple[NamedArray, NamedArray])
    assert_type(nym.random.gamma(key, (A, B), 2.0), NamedArray)
    assert_type(axis.axis_size((A, B)), int)
    assert_type(nym.partitioning.physical_axis_size("a"), int | None)


class Block(eqx.Module):
    norm: nym.nn.RmsNorm

    @staticmethod
    def init(axis: Axis) -> "Block":
        return Block(nym.nn.RmsNorm.init(axis))

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.norm(x)


def test_layers():
    stacked = nym.nn.Stacked.init(A, Block, gradient_checkpointing="nested")(B)
    assert_type(stacked, nym.nn.Stacked[Block])
    assert_type(stacked.stacked, Block)
    assert_type(stacked.get_layer(0), Block)
    assert_type(stacked.unstacked(), list[Block])
    assert_type(stacked.fold(v), NamedArray)
    assert_type(stacked.fold_via(_apply_layer)(v), NamedArray)
    assert_type(stacked.vmap_via(_sum_layer)(v), NamedArray)
    assert_type(stacked.scan_via(_scan_layer)(v), tuple[NamedArray, jax.Array])
    layers = nym.nn.BlockSeq.init(A, Block.init)(B)
    assert_type(layers, nym.nn.BlockSeq[Block])
    either: nym.nn.LayerStack[Block] = layers
    assert_type(either.Block, Axis)
    assert_type(either.get_layer(0), Block)


def _apply_layer(layer: Block, x: NamedArray) -> NamedArray:
    return layer(x)


def _sum_layer(layer: Block, x: NamedArray) -> NamedArray:
    return layer(x).sum()


def _scan_layer(layer: Block, x: NamedArray) -> tuple[NamedArray, jax.Array]:
    return layer(x), x.array
