"""What a named array looks like: as text, in a notebook, in a module, and where its values cannot be read."""

import re
import tracemalloc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym
from tests.processes import run


def cells(x: nym.NamedArray) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", x._repr_html_())
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def body(x: nym.NamedArray) -> str:
    """The values in the text of an array."""
    return str(x).split("\n", 1)[1].removeprefix("  ").removesuffix(")")


def as_numpy_shows(values: np.ndarray) -> str:
    return np.array2string(values, separator=", ", prefix="  ", suffix=")")


def test_the_text_has_the_type_the_axes_and_the_values():
    x = nym.named(jnp.arange(6.0).reshape(2, 3), ("a", "b"))
    assert repr(x) == str(x) == "NamedArray(float32, a: 2, b: 3,\n  [[0., 1., 2.],\n   [3., 4., 5.]])"
    assert repr(nym.named(2.5, ())) == "NamedArray(float32, 2.5)"
    assert repr(nym.zeros({"a": 3})) == "NamedArray(float32, a: 3, [0., 0., 0.])"
    assert repr(nym.zeros({"a": 0, "b": 3})) == "NamedArray(float32, a: 0, b: 3, [])"
    assert repr(nym.named(np.array([1, 2]), "a")) == "NamedArray(int32, a: 2, [1, 2])"
    assert repr(nym.NamedArray(np.array([1, 2], "int64"), "a")) == "NamedArray(int64, a: 2, [1, 2])"


DTYPES = ("bfloat16", "int4", "bool", "complex64", "float8_e4m3fn", "uint8", "float32")
SHAPES = ((1000,), (1001,), (7, 200), (6, 300), (2, 3, 4), (8, 9, 10, 11), (1, 5000))


@pytest.mark.parametrize(("dtype", "sizes"), [*zip(DTYPES, SHAPES, strict=True)])
def test_values_are_shown_as_numpy_shows_them(dtype, sizes):
    values = (np.arange(np.prod(sizes)).reshape(sizes) % 7).astype(jnp.dtype(dtype))
    names = ("a", "b", "c", "d")[: len(sizes)]
    for array in (values, jax.device_put(values)):
        head, shown = str(nym.NamedArray(array, names)).split(", ", 1)
        assert head == f"NamedArray({dtype}"
        assert " ".join(shown.split()).endswith(" ".join(as_numpy_shows(values).split()) + ")")


def test_the_options_of_numpy_apply():
    x = nym.named(jnp.arange(6.0) / 7, "a")
    with np.printoptions(precision=2, threshold=5, edgeitems=1):
        assert repr(x) == "NamedArray(float32, a: 6, [0.  , ..., 0.71])"
    with np.printoptions(linewidth=40):
        assert max(map(len, str(x).split("\n"))) <= 40 < len(str(x))


def test_sharded_arrays_show_their_spec_and_values(mapped):
    y = nym.shard(nym.named(jnp.arange(96.0).reshape(8, 3, 4), ("batch", "pos", "embed")))
    assert str(y).startswith(f"NamedArray(float32, batch: 8, pos: 3, embed: 4, {y.array.sharding.spec},\n  [[[ 0.,  1.")
    assert body(y) == as_numpy_shows(np.asarray(y.array))
    assert repr(nym.zeros({"pos": 1})) == "NamedArray(float32, pos: 1, [0.])"
    keys = nym.shard(nym.named(jax.random.split(jax.random.key(0), 8), "batch"))
    assert str(keys).endswith(as_numpy_shows(np.asarray(jax.random.key_data(keys.array))) + ")")
    shown = []
    jax.jit(lambda number: shown.extend([str(y), str(keys)]) or number)(1.0)  # neither is traced
    assert shown == [str(y), str(keys)]


def test_only_the_edges_of_a_large_array_are_read(mesh):
    values = np.arange(4_000_000, dtype=np.float32).reshape(2000, 2000)
    x = nym.named(jax.device_put(values, NamedSharding(mesh, P("model", "data"))), ("a", "b"))
    replicated = nym.named(jax.device_put(values, NamedSharding(mesh, P())), ("a", "b"))
    expected = as_numpy_shows(values)
    tracemalloc.start()
    with jax.log_compiles(), jax.debug_nans(True):
        shown = [body(x), body(replicated)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shown == [expected, expected]
    assert most < values.nbytes / 20


def test_no_program_is_compiled_to_show_an_array(mapped, caplog):
    x = nym.ones({"batch": 64, "embed": 64})
    with jax.log_compiles():
        str(x), x._repr_html_()
    assert not caplog.records


def test_traced_arrays_show_the_tracer_of_jax(mapped):
    shown = []
    step = nym.named_jit(lambda x: shown.append((repr(x), x._repr_html_(), repr(x.array))) or x)
    x = nym.ones({"batch": 8, "pos": 3})
    step(x)
    text, card, tracer = shown[0]
    spec = f", {P('data', None)},\n  " if "@data" in tracer else ", "  # specs are part of types on Explicit meshes
    assert text == f"NamedArray(float32, batch: 8, pos: 3{spec}traced as {tracer})" and "JitTracer" in tracer
    assert f">traced as {tracer}</pre>" in card
    jax.grad(lambda x: shown.append((repr(x), repr(x.array))) or x.sum().scalar())(x)
    text, tracer = shown[1]
    assert text.split() == f"NamedArray(float32, batch: 8, pos: 3,{spec[1:-2]} traced as {tracer})".split()


def test_the_text_says_why_there_are_no_values():
    assert repr(jax.eval_shape(lambda: nym.ones({"a": 2}))) == "NamedArray(float32, a: 2, ShapeDtypeStruct)"
    x = nym.zeros({"a": 1})
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert repr(x) == "NamedArray(float32, a: 1, deleted)" and ">deleted</pre>" in x._repr_html_()
    assert repr(nym.named(jax.random.key(0), ())) == "NamedArray(key<fry>, key data [0, 0])"


PROCESSES = """
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
start()
for kind in ("auto", "explicit"):
    mesh = nym.create_mesh((2, 2), ("data", "model"), axis_types=kind)
    with jax.set_mesh(mesh):
        rows = nym.NamedArray(np.arange(4.0, dtype=np.float32).reshape(2, 2) + 4 * PROCESS, ("batch", "embed"))
        parted = nym.host_local_to_global(rows, {"batch": "data"})
        assert str(parted) == f"NamedArray(float32, batch: 4, embed: 2, {parted.sharding.spec},\\n  values on other processes)", str(parted)
        has(parted._repr_html_(), "values on other processes")
        same = jax.make_array_from_callback((2,), NamedSharding(mesh, P("model")), lambda at: np.arange(2)[at])
        assert str(nym.named(same, "embed")) == "NamedArray(int64, embed: 2, P('model',), [0, 1])".replace("int64", str(same.dtype)), str(nym.named(same, "embed"))
        large = jax.make_array_from_callback((5000,), NamedSharding(mesh, P("data")), lambda at: np.arange(5000)[at])
        has(str(nym.named(large, "batch")), "values on other processes")
print("shown")
"""  # noqa: E501


def test_arrays_on_several_processes_are_shown_as_far_as_they_can_be_read():
    assert all(output.endswith("shown\n") for output in run(PROCESSES))


def test_modules_show_arrays_without_values(mapped):
    linear = nym.nn.Linear.init(nym.Axis("embed", 4), nym.Axis("mlp", 8), key=jax.random.key(0))
    assert "weight=f32[mlp: 8, embed: 4@model]" in repr(linear) and "bias=f32[mlp: 8]" in repr(linear)
    parts = {
        "numpy": nym.NamedArray(np.ones((2, 3), "int8"), ("a", "b")),
        "shape": jax.eval_shape(lambda: nym.ones({"a": 2})),
        "both": nym.shard(nym.ones({"batch": 8}), {"batch": ("data", "model")}),
        "none": jax.tree.map(lambda _: None, nym.ones({"a": 2})),
    }
    assert eqx.tree_pformat(parts, width=200) == (
        "{'numpy': i8[a: 2, b: 3](numpy), 'shape': f32[a: 2](ShapeDtypeStruct), "
        "'both': f32[batch: 8@(data,model)], 'none': NamedArray(None, (a))}"
    )
    assert eqx.tree_pformat(nym.ones({"a": 2}), short_arrays=False) == "NamedArray(float32, a: 2, [1., 1.])"


def test_errors_describe_arrays_without_values():
    x = nym.full({"a": 100}, 7.25)
    for call in (
        lambda: nym.named_jit({"x": x}),
        lambda: nym.Axis({"x": x}, 3),
        lambda: nym.AxisMapping({"a": x}),
        lambda: nym.create_mesh(x, ("data",)),
        lambda: nym.linalg.qr(nym.ones({"i": 2, "j": 2}), ("i", "j"), mode=x),
        lambda: nym.tree_util.resize_axis(x, x, jax.random.key(0)),
        lambda: nym.zeros({"x": x}),
        lambda: nym.new_ref({"x": x}),
        lambda: x + {"x": x},
    ):
        with pytest.raises((TypeError, ValueError), match=r".") as raised:
            call()
        assert "7.25" not in str(raised.value)


def test_a_notebook_shows_axes_and_mesh_axes(mapped):
    x = nym.zeros({"pos": 512, "layer": 1024})
    assert ">NamedArray, float32, 2 MiB</caption>" in x._repr_html_()
    assert cells(x) == [["axis", "size"], ["pos", "512"], ["layer", "1024"]]
    x = nym.shard(nym.ones({"pos": 3, "batch": 8, "embed": 4}))
    expected = [["axis", "size", "mesh axes"], ["pos", "3", ""], ["batch", "8", "data"], ["embed", "4", "model"]]
    assert cells(x) == expected


def test_a_notebook_shows_the_values():
    assert ">[0, 1, 2]</pre>" in nym.arange(nym.Axis("i", 3))._repr_html_()
    assert ">[   0,    1,    2, ..., 1997, 1998, 1999]</pre>" in nym.arange(nym.Axis("i", 2000))._repr_html_()
    assert ">[[0., 0.],\n [0., 0.]]</pre>" in nym.zeros({"i": 2, "j": 2})._repr_html_()
    assert "<b>" not in nym.ones({"<b>": 2})._repr_html_()


@pytest.mark.parametrize("show", [repr, nym.NamedArray._repr_html_, eqx.tree_pformat], ids=["line", "table", "module"])
def test_anything_that_jax_puts_into_a_tree_is_shown(show):
    x = nym.ones({"a": 2})
    for leaf in (None, True, jax.ShapeDtypeStruct((2,), jnp.float32), np.ones((2, 2)), jax.random.key(0)):
        shown = show(jax.tree.unflatten(jax.tree.structure(x), [leaf]))
        assert ("NamedArray" in shown or "f32" in shown) and "a" in shown
    shown = []
    jax.jit(lambda x: shown.append(show(x)))(x)
    assert "float32" in shown[0] or "f32" in shown[0]
    jax.vmap(lambda x: shown.append(show(x)))(nym.ones({"a": 2, "b": 3}))
    assert "VmapTracer" in shown[1]
