"""Mistakes of the first hour: each is an error of one sentence that shows the named way."""

import contextlib
import copy
import dataclasses
import pickle
from collections.abc import Iterator
from traceback import extract_tb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis

from .refusals import refusal


Batch, Pos, Embed, Mlp = nym.make_axes(batch=8, pos=4, embed=16, mlp=32)
KEY = jax.random.key(0)
MAPPING = {"batch": "data", "embed": "model"}
MESH = nym.create_abstract_mesh((4, 2), ("data", "model"))
x: Any = nym.ones((Batch, Embed))
y: Any = nym.ones((Batch, Pos))
row: Any = nym.ones(Embed)
ids: Any = nym.named(jnp.arange(8), "batch")
NYM: Any = nym  # without types, because every call here is wrong

ATTRIBUTES = {
    "T": "; axes are ordered by name, and `rearrange(x, ('embed', ...))` puts 'embed' first.",
    "transpose": "`rearrange(x, ('embed', ...))`",
    "reshape": "; `flatten_axes` merges axes, `unflatten_axis` splits one, and `rearrange` does both by an expression.",
    "expand_dims": "; operands align by name without it; `expand(x, 'new')` adds an axis of size 1.",
    "unsqueeze": "`expand(x, 'new')`",
    "matmul": "; `dot(x, y, axis='embed')` multiplies and sums over named axes, and `einsum` takes an expression.",
    "to": "; `axonym.shard` and `jax.device_put` move arrays, and `x.sharding` shows where they are.",
    "detach": "`jax.lax.stop_gradient(x)`",
    "backward": "; `axonym.grad(fn)` is the gradient of a function",
    "float": "; `x.astype(dtype)` converts the elements.",
    "numpy": "; `x.array` is the plain array.",
    "dims": "; `x.names` has the names of the axes, `x.axes` the names and sizes",
    "isel": "; `x['embed', 0]` indexes by name.",
    "set": "; arrays never change, and `x.at['embed', 0].set(value)` returns one with other elements.",
    "exp": "; `axonym.exp` is a function.",
    "concatenate": "; `axonym.concatenate` is a function.",
    "relu": "; `axonym.nn.relu` is a function.",
    "norm": "; `axonym.linalg.norm` is a function.",
    "rfft": "; `axonym.fft.rfft` is a function.",
    "polyfit": "; `axonym.poly.polyfit` is a function.",
    "fft2": "; `axonym.fft.fft(x, ('y', 'x'))` transforms several axes, and so do `ifft`, `rfft` and `irfft`.",
    "groupby": "; `axonym.zeros((Axis('month', 12), *others)).at['month', months].add(x)` adds up the elements of each",
    "coarsen": "; `axonym.nn.mean_pool(Axis('time', 7), x, stride=7)` averages windows one after another.",
    "rolling": "; `axonym.nn.mean_pool(Axis('time', 7), x, stride=1)` averages a window that moves along an axis.",
    "sel": "; `axonym.interop.to_xarray(x, coords)` returns a `DataArray` with labels, which has it.",
    "fillna": "`axonym.where(axonym.isnan(x), 0.0, x)` fills them.",
    "weighted": "; `axonym.average(x, 'lat', weights=w)` is the weighted mean.",
    "unstack": "`unflatten_axis` splits one",
    "shift": "; `axonym.pad(x['time', :-1], {'time': (1, 0)})` shifts in a zero, and `axonym.roll` wraps",
    "equals": "; `axonym.array_equal(x, y)` compares arrays.",
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_other_libraries_show_the_named_way(name):
    assert not hasattr(x, name) and getattr(x, name, 3) == 3
    with refusal(f"A `NamedArray` has no attribute {name!r}", AttributeError) as caught:
        getattr(x, name)
    assert ATTRIBUTES[name] in str(caught.value)


def test_functions_of_other_libraries_show_the_named_way():
    with refusal("no attribute 'reshape'; `flatten_axes` merges axes", AttributeError):
        NYM.reshape(x, (4, 32))
    with refusal("no attribute 'asarray'; `axonym.named(array, ('batch', 'embed'))`", AttributeError):
        NYM.asarray([1])
    with refusal("no attribute 'rfft2'; `axonym.fft.fft(x, ('y', 'x'))` transforms", AttributeError):
        NYM.fft.rfft2(x)
    for module in (NYM, NYM.fft):
        with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'qqq'$"):
            _ = module.qqq


def test_other_attributes_are_looked_up_as_always():
    with pytest.raises(AttributeError, match=r"^'NamedArray' object has no attribute 'qqq'$") as caught:
        _ = x.qqq
    assert (caught.value.name, caught.value.obj is x) == ("qqq", True)
    placeholder = jax.tree.map(lambda _: object(), x)
    with pytest.raises(AttributeError, match="'object' object has no attribute 'dtype'"):  # raised by a property
        _ = placeholder.dtype
    for protocol in ("array_interface", "array_struct", "jax_array", "cuda_array_interface", "iadd"):
        assert not hasattr(x, f"__{protocol}__")
    for same in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert same.names == x.names and np.array_equal(np.asarray(same), np.asarray(x))


@contextlib.contextmanager
def mistake(message: str, error: type[Exception] = TypeError) -> Iterator[None]:
    """Expects an error that is raised in this file, as a user sees it."""
    with refusal(message, error) as raised:
        yield
    assert extract_tb(raised.value.__traceback__)[-1].filename == __file__


def test_an_array_is_never_assigned_to():
    with mistake("A `NamedArray` never changes; use `x = x.at['axis', index].set(value)`."):
        x["batch", 0] = 1.0


def test_axes_are_given_in_order_by_names_and_sizes():
    with mistake("The axes of an array have an order, which a set lacks; give them as a tuple."):
        NYM.named(jnp.ones((2, 3)), {"a", "b"})
    with mistake("have an order, which a set lacks"):
        NYM.zeros({Batch, Embed})
    with mistake("have an order, which a set lacks"):
        x.rearrange({"embed", "batch"})
    with mistake("Several axes are given as a tuple, so Axis("):
        NYM.zeros(Batch, Embed)
    with mistake("with a name and a size, not by an array of shape (8, 16)."):
        NYM.zeros(x)
    with mistake("or by its name, not by an array of shape (8, 16); the axes are (batch, embed)."):
        x.sum(x)
    with mistake("or by its name, not by `zeros`."):
        NYM.vmap(abs, nym.zeros)
    with mistake("`rename` takes a mapping from old to new names, such as {'pos': 'key_pos'}, not a list of length 2."):
        x.rename(["a", "b"])
    with mistake("no axis 'mlp batch' in (batch: 8, mlp: 32)", ValueError):
        nym.dot(x, nym.ones((Embed, Mlp)), axis="embed", out_axes="mlp batch")
    with mistake("`vmap` over axis 'bacth': no argument has it; did you mean 'batch'?", ValueError):
        nym.vmap(abs, "bacth")(x)


def test_operands_are_named_arrays_or_numbers_whose_axes_broadcast():
    with mistake("An operand is a named array or a number, not 'a'."):
        x + "a"
    with mistake("An operand is a named array or a number, not None."):
        x * None
    rest = "'embed' of one operand and 'pos' of the other"
    with mistake(f"cannot broadcast (batch: 8, pos: 4) and (batch: 8, embed: 16): {rest}", ValueError):
        nym.where(y > 0, x, 0.0)


def test_a_traced_slice_has_a_length_that_is_known():
    with mistake("needs integers that are known before the program runs; `axonym.ds(start, length)`"):
        jax.jit(lambda i: x["batch", i : i + 2])(0)


LOST = "of JAX would lose the names of (batch: 8, embed: 16)"


def test_functions_of_jax_would_lose_the_names():
    with mistake(f"`exp` {LOST}; use `axonym.exp`, or pass the plain array `x."):
        jnp.exp(x)
    with mistake(f"`sum` {LOST}; use `axonym.sum`"):
        jax.jit(lambda x: jnp.sum(x))(x)
    with mistake(f"`tanh` {LOST}"):
        jax.jit(jnp.tanh)(x)
    with mistake(f"`dot` {LOST}; use"):
        jnp.dot(x, x)
    with mistake(f"`concatenate` {LOST}"):
        jnp.concatenate([x])
    with mistake("use `axonym.where`, or pass"):
        jnp.where(1 > 0, 0.0, x)
    with mistake(f"`softmax` {LOST}"):
        jax.nn.softmax(x)
    with mistake(f"`rfft` {LOST}; use"):
        jnp.fft.rfft(x)
    with mistake(f"`fft2` {LOST}; `axonym.fft.fft(x, ('y', 'x'))` transforms"):
        jnp.fft.fft2(x)
    with mistake("; axes are ordered by name, and `rearrange(x,"):
        jnp.transpose(x)
    with mistake(f"`digamma` {LOST}"):  # which has no counterpart
        jax.scipy.special.digamma(x)


def test_functions_of_numpy_would_lose_the_names():
    with mistake("`exp` of NumPy would lose the names of (batch: 8, embed: 16); use `axonym.exp`"):
        np.exp(x)
    with mistake("`add` of NumPy would lose the names of"):
        np.add(x, 1)
    with mistake("`add.reduce` of NumPy would lose the names of"):
        np.add.reduce(x)
    with mistake("use `axonym.exp`"):
        jax.jit(lambda x: np.exp(x))(x)


def test_arguments_in_another_order_show_theirs():
    with mistake("`stack` takes an axis and a list of arrays, `stack('pos', [x, y])`, not a list of length 2 and 'n'."):
        NYM.stack([x, x], "n")
    with mistake("`take` takes the axis before the index, `take(x, 'vocab', index)`, not an array of shape (8,)."):
        NYM.take(x, ids, "batch")
    for transform in (NYM.vmap, NYM.scan):
        with mistake(f"`{transform.__name__}` takes a function first, not 'batch'."):
            transform("batch", abs)
    for transform in (NYM.map, NYM.fold):
        with mistake(f"`{transform.__name__}` takes a function first, not an array"):
            transform(x, "batch")
    with mistake("`lift` takes a function first, not an array"):
        NYM.lift(x)
    with mistake("takes a function first, not an array of shape (8, 16)."):
        NYM.grad(x)
    with mistake("A random key such as `jax.random.key(0)` is needed, not (Axis("):
        NYM.random.normal((Batch, Embed), KEY)


def test_functions_return_what_a_gradient_or_a_loop_needs():
    with mistake("the function returned a tuple of length 2; with `has_aux=True` it may return a pair"):
        nym.grad(lambda x: (x.sum(), 1))(x)
    before = "The carry of `fold` is a named array (embed: 16) before a step and"
    with mistake(f"{before} (a named array (embed: 16), a named array (embed: 16)) after it"):
        nym.fold(lambda carry, each: (carry, each), "batch")(row, x)
    with mistake(f"{before} None after it"):
        nym.fold(lambda carry, each: None, "batch")(row, x)
    with mistake("(embed: 16) of float32 before a step and of int32 after it; convert it"):
        nym.scan(lambda carry, each: (carry.astype(int), each), "batch")(row, x)


def test_meshes_and_mappings_in_place_of_each_other_show_where_they_belong():
    shown = "the mesh (data: 4, model: 2)"
    remedy = f"not {shown}; set a mesh with `with jax.set_mesh(mesh):`, or pass it after the mapping"
    with mistake(f"such as {{'batch': 'data'}}, {remedy}, as in `shard(x, mapping, mesh)`."):
        NYM.shard(x, MESH, MAPPING)
    with mistake(remedy):
        NYM.explain(x, MESH, MAPPING)
    with mistake(f"not {shown}; set a mesh with"):
        NYM.axis_mapping(MESH)
    with mistake(f"Axis 'mesh' is mapped to {shown}; give a mesh axis, several of them, or None; set a mesh"):
        NYM.axis_mapping(MAPPING, mesh=MESH)
    with mistake("`mesh` is a mesh, such as `axonym.create_mesh` returns, not {'batch': 'data', 'embed': 'model'}."):
        NYM.shard(x, MAPPING, mesh=MAPPING)
    with mistake("Axis(name='batch', size=8) is not a name; use 'batch'."):
        NYM.shard(x, {Batch: "data"})


def test_a_stack_is_made_of_an_axis_and_a_class():
    example = "as in `Stacked.init(Axis('layers', 12), Block)`"
    with mistake(f"takes the layer axis and the class of a layer, {example}, not 'layers' and `RmsNorm`."):
        NYM.nn.Stacked.init("layers", nym.nn.RmsNorm)
    with mistake("not `RmsNorm` and Axis(name='layers', size=2)."):
        NYM.nn.Stacked.init(nym.nn.RmsNorm, Axis("layers", 2))


LAYERS: dict[str, Any] = {
    "Linear": lambda Layer: Layer(Embed, Mlp),
    "Embedding": lambda Layer: Layer(Batch, Embed, key=KEY),
    "RmsNorm": lambda Layer: Layer((Embed,)),
    "LayerNorm": lambda Layer: Layer(Embed),
    "MLP": lambda Layer: Layer(Embed, Mlp, 32, 2, key=KEY),
    "Stacked": lambda Layer: Layer(nym.nn.RmsNorm, Axis("layers", 2)),
    "BlockSeq": lambda Layer: Layer(Axis("layers", 2), nym.nn.RmsNorm),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_called_like_init_points_to_init(name):
    with refusal(f"Axes and keys are arguments of `{name}.init(...)`, which makes a new layer.", TypeError):
        LAYERS[name](getattr(nym.nn, name))


def test_layers_are_still_made_of_their_fields():
    layer = nym.nn.Linear.init(Embed, Mlp, key=KEY)
    again = nym.nn.Linear(layer.weight, None, (Embed,), (Mlp,))
    assert again(row).names == ("mlp",) and type(again) is nym.nn.Linear
    assert copy.copy(layer).In == pickle.loads(pickle.dumps(layer)).In == (Embed,)
    cache = nym.nn.KVCache.init(Axis("key_pos", 4), Embed)  # whose keys are no random keys
    assert dataclasses.replace(cache, length=nym.ones((), int)).length.item() == 1


def test_a_subclass_of_a_layer_may_be_made_of_axes():
    class Projection(nym.nn.Linear):
        def __init__(self, In: Axis, *, key: jax.Array):
            self.weight, self.bias = nym.random.normal(key, (In, Mlp)), None
            self.In, self.Out = (In,), (Mlp,)

    assert Projection(Embed, key=KEY)(row).names == ("mlp",)


@pytest.mark.parametrize("given", ["auto_mesh", "half"])
def test_shard_inside_jit_refuses_a_mesh_it_cannot_use(given, explicit_mesh, auto_mesh):
    half = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    mesh = auto_mesh if given == "auto_mesh" else half
    shown = "(data: 4, model: 2) of Auto" if given == "auto_mesh" else "(data: 4) of Explicit"
    text = f"inside a compiled function takes the active mesh (data: 4, model: 2) of Explicit axes, not {shown} axes"
    with jax.set_mesh(explicit_mesh), refusal(text):
        jax.jit(lambda x: nym.shard(x, {"batch": "data"}, mesh=mesh))(x)


def test_shard_inside_jit_takes_the_active_mesh(mesh):
    assert jax.jit(lambda x: nym.shard(x, {"batch": "data"}, mesh=mesh))(x).sharding.spec[0] == "data"


def test_errors_name_axes_and_never_show_values():
    shown = nym.named(np.arange(12.0, dtype=np.float32).reshape(4, 3), ("x", "y"))
    for compute, text in (
        (lambda: shown + nym.ones({"x": 5}), "axis 'x' has size 4 and size 5 in (x: 4, y: 3) and (x: 5)"),
        (lambda: shown["q", 0], "no axis 'q' in (x: 4, y: 3)"),
    ):
        with refusal(text) as error:
            compute()
        assert "11." not in str(error.value)
