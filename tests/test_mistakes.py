"""Mistakes of the first hour: each is an error of one sentence that shows the named way."""

import copy
import dataclasses
import pickle
from re import escape
from traceback import extract_tb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


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
    "permute": "`rearrange(x, ('embed', ...))`",
    "swapaxes": "`rearrange(x, ('embed', ...))`",
    "mT": "`rearrange(x, ('embed', ...))`",
    "reshape": "; `flatten_axes` merges axes, `unflatten_axis` splits one, and `rearrange` does both by an expression.",
    "view": "`flatten_axes` merges axes",
    "expand_dims": "; operands align by name without it; `expand(x, 'new')` adds an axis of size 1.",
    "unsqueeze": "`expand(x, 'new')`",
    "matmul": "; `dot(x, y, axis='embed')` multiplies and sums over named axes, and `einsum` takes an expression.",
    "to": "; `axonym.shard` and `jax.device_put` move arrays, and `x.sharding` shows where they are.",
    "cuda": "`axonym.shard`",
    "cpu": "`jax.device_put`",
    "detach": "`jax.lax.stop_gradient(x)`",
    "backward": "; `axonym.grad(fn)` is the gradient of a function",
    "float": "; `x.astype(dtype)` converts the elements.",
    "numpy": "; `x.array` is the plain array.",
    "values": "; `x.array` is the plain array.",
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
    "plot": "`axonym.interop.to_xarray(x, coords)`",
    "coords": "`axonym.interop.to_xarray(x, coords)`",
    "fillna": "`axonym.where(axonym.isnan(x), 0.0, x)` fills them.",
    "weighted": "; `axonym.average(x, 'lat', weights=w)` is the weighted mean.",
    "unstack": "`unflatten_axis` splits one",
    "shift": "; `axonym.pad(x['time', :-1], {'time': (1, 0)})` shifts in a zero, and `axonym.roll` wraps",
    "equals": "; `axonym.array_equal(x, y)` compares arrays.",
    "head": "; `x['embed', 0]` indexes by name.",
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_other_libraries_show_the_named_way(name):
    assert not hasattr(x, name) and getattr(x, name, 3) == 3
    with pytest.raises(AttributeError, match=escape(f"A `NamedArray` has no attribute {name!r}")) as caught:
        getattr(x, name)
    assert ATTRIBUTES[name] in str(caught.value)


def test_functions_of_other_libraries_show_the_named_way():
    with pytest.raises(AttributeError, match=escape("no attribute 'reshape'; `flatten_axes` merges axes")):
        NYM.reshape(x, (4, 32))
    with pytest.raises(
        AttributeError, match=escape("no attribute 'asarray'; `axonym.named(array, ('batch', 'embed'))`")
    ):
        NYM.asarray([1])
    with pytest.raises(
        AttributeError, match=escape("no attribute 'rfft2'; `axonym.fft.fft(x, ('y', 'x'))` transforms")
    ):
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
    for protocol in (
        "__array_interface__",
        "__array_struct__",
        "__jax_array__",
        "__cuda_array_interface__",
        "__iadd__",
    ):
        assert not hasattr(x, protocol)
    for same in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert same.names == x.names and np.array_equal(np.asarray(same), np.asarray(x))


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "assignment": (
        lambda: x.__setitem__(("batch", 0), 1.0),
        TypeError,
        "A `NamedArray` never changes; use `x = x.at['axis', index].set(value)`.",
    ),
    "set of names": (
        lambda: NYM.named(jnp.ones((2, 3)), {"a", "b"}),
        TypeError,
        "The axes of an array have an order, which a set lacks; give them as a tuple.",
    ),
    "set of axes": (lambda: NYM.zeros({Batch, Embed}), TypeError, "have an order, which a set lacks"),
    "set as order": (lambda: x.rearrange({"embed", "batch"}), TypeError, "have an order, which a set lacks"),
    "axes as arguments": (lambda: NYM.zeros(Batch, Embed), TypeError, "Several axes are given as a tuple, so Axis("),
    "array as axes": (lambda: NYM.zeros(x), TypeError, "with a name and a size, not by an array of shape (8, 16)."),
    "array as axis": (
        lambda: x.sum(x),
        TypeError,
        "or by its name, not by an array of shape (8, 16); the axes are (batch, embed).",
    ),
    "text as operand": (lambda: x + "a", TypeError, "An operand is a named array or a number, not 'a'."),
    "None as operand": (lambda: x * None, TypeError, "An operand is a named array or a number, not None."),
    "jnp function": (
        lambda: jnp.exp(x),
        TypeError,
        "`exp` of JAX would lose the names of (batch: 8, embed: 16); use `axonym.exp`, or pass the plain array `x.",
    ),
    "jnp function in jit": (
        lambda: jax.jit(lambda x: jnp.sum(x))(x),
        TypeError,
        "`sum` of JAX would lose the names of (batch: 8, embed: 16); use `axonym.sum`",
    ),
    "jnp function that is compiled": (lambda: jax.jit(jnp.tanh)(x), TypeError, "`tanh` of JAX would lose the names"),
    "jnp.dot": (lambda: jnp.dot(x, x), TypeError, "`dot` of JAX would lose the names of (batch: 8, embed: 16); use"),
    "jnp list": (lambda: jnp.concatenate([x]), TypeError, "`concatenate` of JAX would lose the names"),
    "jnp second operand": (lambda: jnp.where(1 > 0, 0.0, x), TypeError, "use `axonym.where`, or pass"),
    "jax.nn": (lambda: jax.nn.softmax(x), TypeError, "`softmax` of JAX would lose the names of (batch: 8, embed: 16)"),
    "jnp.fft": (lambda: jnp.fft.rfft(x), TypeError, "`rfft` of JAX would lose the names of (batch: 8, embed: 16); use"),
    "jnp.fft of several axes": (
        lambda: jnp.fft.fft2(x),
        TypeError,
        "`fft2` of JAX would lose the names of (batch: 8, embed: 16); `axonym.fft.fft(x, ('y', 'x'))` transforms",
    ),
    "jnp.transpose": (lambda: jnp.transpose(x), TypeError, "; axes are ordered by name, and `rearrange(x,"),
    "no counterpart": (lambda: jax.scipy.special.digamma(x), TypeError, "`digamma` of JAX would lose the names of"),
    "ufunc": (
        lambda: np.exp(x),
        TypeError,
        "`exp` of NumPy would lose the names of (batch: 8, embed: 16); use `axonym.e",
    ),
    "ufunc of two": (lambda: np.add(x, 1), TypeError, "`add` of NumPy would lose the names of"),
    "ufunc method": (lambda: np.add.reduce(x), TypeError, "`add.reduce` of NumPy would lose the names of"),
    "ufunc in jit": (lambda: jax.jit(lambda x: np.exp(x))(x), TypeError, "use `axonym.exp`"),
    "traced slice": (
        lambda: jax.jit(lambda i: x["batch", i : i + 2])(0),
        TypeError,
        "needs integers that are known before the program runs; `axonym.ds(start, length)`",
    ),
    "scalars in broadcasting": (
        lambda: nym.where(y > 0, x, 0.0),
        ValueError,
        "cannot broadcast (batch: 8, pos: 4) and (batch: 8, embed: 16): 'embed' of one operand and 'pos' of the other",
    ),
    "order of axes as text": (
        lambda: nym.dot(x, nym.ones((Embed, Mlp)), axis="embed", out_axes="mlp batch"),
        ValueError,
        "no axis 'mlp batch' in (batch: 8, mlp: 32)",
    ),
    "rename with a list": (
        lambda: x.rename(["a", "b"]),
        TypeError,
        "`rename` takes a mapping from old to new names, such as {'pos': 'key_pos'}, not a list of length 2.",
    ),
    "arrays before the axis": (
        lambda: NYM.stack([x, x], "n"),
        TypeError,
        "`stack` takes an axis and a list of arrays, `stack('pos', [x, y])`, not a list of length 2 and 'n'.",
    ),
    "index before the axis": (
        lambda: NYM.take(x, ids, "batch"),
        TypeError,
        "`take` takes the axis before the index, `take(x, 'vocab', index)`, not an array of shape (8,).",
    ),
    "axis before the function": (lambda: NYM.vmap("batch", abs), TypeError, "`vmap` takes a function first, not 'b"),
    "axis before the body": (lambda: NYM.scan("batch", abs), TypeError, "`scan` takes a function first, not 'batch'."),
    "array before the axis": (lambda: NYM.map(x, "batch"), TypeError, "`map` takes a function first, not an array"),
    "fold of an array": (lambda: NYM.fold(x, "batch"), TypeError, "`fold` takes a function first, not an array"),
    "lift of an array": (lambda: NYM.lift(x), TypeError, "`lift` takes a function first, not an array"),
    "gradient of an array": (lambda: NYM.grad(x), TypeError, "takes a function first, not an array of shape (8, 16)."),
    "gradient of a pair": (
        lambda: nym.grad(lambda x: (x.sum(), 1))(x),
        TypeError,
        "the function returned a tuple of length 2; with `has_aux=True` it may return a pair",
    ),
    "function as axis": (lambda: NYM.vmap(abs, nym.zeros), TypeError, "or by its name, not by `zeros`."),
    "mistyped axis of vmap": (
        lambda: nym.vmap(abs, "bacth")(x),
        ValueError,
        "`vmap` over axis 'bacth': no argument has it; did you mean 'batch'?",
    ),
    "fold that returns a pair": (
        lambda: nym.fold(lambda carry, each: (carry, each), "batch")(row, x),
        TypeError,
        "The carry of `fold` is a named array (embed: 16) before a step and (a named array (embed: 16), a named array "
        "(embed: 16)) after it",
    ),
    "fold that returns nothing": (
        lambda: nym.fold(lambda carry, each: None, "batch")(row, x),
        TypeError,
        "The carry of `fold` is a named array (embed: 16) before a step and None after it",
    ),
    "carry of another dtype": (
        lambda: nym.scan(lambda carry, each: (carry.astype(int), each), "batch")(row, x),
        TypeError,
        "The carry of `scan` is a named array (embed: 16) of float32 before a step and of int32 after it; convert it",
    ),
    "key after the axes": (
        lambda: NYM.random.normal((Batch, Embed), KEY),
        TypeError,
        "A random key such as `jax.random.key(0)` is needed, not (Axis(",
    ),
    "mesh passed to shard": (
        lambda: NYM.shard(x, MESH, MAPPING),
        TypeError,
        "such as {'batch': 'data'}, not the mesh (data: 4, model: 2); set a mesh with `with jax.set_mesh(mesh):`, or "
        "pass it after the mapping, as in `shard(x, mapping, mesh)`.",
    ),
    "mesh passed to explain": (
        lambda: NYM.explain(x, MESH, MAPPING),
        TypeError,
        "not the mesh (data: 4, model: 2); set a mesh with `with jax.set_mesh(mesh):`, or pass it after the mapping",
    ),
    "mesh as mapping": (lambda: NYM.axis_mapping(MESH), TypeError, "not the mesh (data: 4, model: 2); set a mesh with"),
    "mesh in the mapping": (
        lambda: NYM.axis_mapping(MAPPING, mesh=MESH),
        TypeError,
        "Axis 'mesh' is mapped to the mesh (data: 4, model: 2); give a mesh axis, several of them, or None; set a mesh",
    ),
    "mapping as mesh": (
        lambda: NYM.shard(x, MAPPING, mesh=MAPPING),
        TypeError,
        "`mesh` is a mesh, such as `axonym.create_mesh` returns, not {'batch': 'data', 'embed': 'model'}.",
    ),
    "axis in the mapping": (
        lambda: NYM.shard(x, {Batch: "data"}),
        TypeError,
        "Axis(name='batch', size=8) is not a name; use 'batch'.",
    ),
    "stack of a name": (
        lambda: NYM.nn.Stacked.init("layers", nym.nn.RmsNorm),
        TypeError,
        "`Stacked.init` takes the layer axis and the class of a layer, as in `Stacked.init(Axis('layers', 12), Block)`"
        ", not 'layers' and `RmsNorm`.",
    ),
    "class before the layers": (
        lambda: NYM.nn.Stacked.init(nym.nn.RmsNorm, Axis("layers", 2)),
        TypeError,
        "not `RmsNorm` and Axis(name='layers', size=2).",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_show_the_next_step(mistake):
    call, kind, text = MISTAKES[mistake]
    with pytest.raises(kind, match=escape(text)) as raised:
        call()
    assert extract_tb(raised.value.__traceback__)[-1].filename == __file__


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
    text = f"Axes and keys are arguments of `{name}.init(...)`, which makes a new layer."
    with pytest.raises(TypeError, match=escape(text)):
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
    with jax.set_mesh(explicit_mesh), pytest.raises(ValueError, match=escape(text)):
        jax.jit(lambda x: nym.shard(x, {"batch": "data"}, mesh=mesh))(x)


def test_shard_inside_jit_takes_the_active_mesh(mesh):
    assert jax.jit(lambda x: nym.shard(x, {"batch": "data"}, mesh=mesh))(x).sharding.spec[0] == "data"
