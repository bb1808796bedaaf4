"""`NamedArray` itself: how it is made and shown, that it never changes, and how it goes with JAX, NumPy and Python."""

import copy
import inspect
import operator
import pickle
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, NamedArray
from tests.refusals import refusal


values = np.arange(6, dtype=np.float32).reshape(2, 3)
plain = jax.device_put(values)
x = NamedArray(plain, ("a", "b"))
number = nym.named(2.5, ())


def test_axes_are_given_in_many_ways():
    ways = ("a", "b"), ["a", Axis("b", 3)], nym.make_axes(a=2, b=3), {"a": 2, "b": 3}, {"a": None, "b": 3}
    for axes in (*ways, x.shape, (name for name in "ab")):
        y = NamedArray(plain, axes)
        assert y.names == ("a", "b") and y.array is plain
    assert NamedArray(np.ones(3), "b").names == NamedArray(np.ones(3), Axis("b", 3)).names == ("b",)
    assert NamedArray(np.ones(()), ()).names == ()


@pytest.mark.parametrize("make", [NamedArray, nym.named])
@pytest.mark.parametrize(
    ("axes", "kind", "text"),
    [
        (("a",), ValueError, "an array of shape (2, 3) has 2 axes, 1 are named: (a)"),
        ("a b", ValueError, "an array of shape (2, 3) has 2 axes, 1 are named: (a b); give several names as a tuple"),
        (("a", "a"), ValueError, "axis 'a' occurs more than once in (a, a); names are unique within an array: `ren"),
        (("a", ""), ValueError, "The name of an axis must not be empty."),
        (("a", Axis("b", 4)), ValueError, "axis 'b' has size 3 here, 4 was asked for"),
        (("a", 1), TypeError, "An axis is given by an `Axis` or by its name, not by 1."),
        (plain, TypeError, "An axis is given by an `Axis` or by its name, not by an array of shape (2, 3)."),
    ],
)
def test_what_does_not_fit_is_refused(make, axes, kind, text):
    with refusal(text, kind):
        make(plain, axes)


def test_what_is_no_array_is_refused():
    for value in ([1, 2], 1.0, None, "abc"):
        with refusal(f"holds an array, not a {type(value).__name__}; `axonym.named` makes one", TypeError):
            NamedArray(value, "a")
    for make in (NamedArray, nym.named):
        with refusal("(a: 2, b: 3) has names already; use `rename` to change them.", TypeError):
            make(x, ("c", "d"))
    for value, shown in (("i", "'i'"), (None, "None")):
        with refusal(f"`named` takes an array or numbers first, not {shown}.", TypeError):
            nym.named(value, plain)


def test_threads_cannot_switch_the_checks_off():
    """Each thread rebuilds arrays, which checks nothing, while it makes arrays, which checks everything."""
    accepted, interval = [], sys.getswitchinterval()

    def work():
        for _ in range(200):
            jax.tree.map(lambda leaf: None, [x, x])
            try:
                accepted.append(NamedArray(plain, nym.make_axes(a=8, b=4)))
            except ValueError:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert accepted == []


def test_it_never_changes():
    for name in ("array", "names", "other"):
        with refusal(f"never changes, so '{name}' cannot be set; make a new one", AttributeError):
            setattr(x, name, 1)
        with refusal(f"never changes, so '{name}' cannot be deleted", AttributeError):
            delattr(x, name)
    assert not hasattr(x, "__dict__")


def test_copies_are_equal():
    for original in (x, number, NamedArray(np.ones(3), "a")):
        for y in (copy.copy(original), copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert type(y) is NamedArray and y.names is original.names and type(y.array) is type(original.array)
            assert np.array_equal(y.array, original.array)


def test_it_is_a_pytree_of_one_array():
    leaves, treedef = jax.tree.flatten(x)
    assert len(leaves) == 1 and leaves[0] is plain
    assert treedef == jax.tree.structure(nym.zeros({"a": 5, "b": 7})) != jax.tree.structure(nym.zeros({"b": 5, "a": 7}))
    assert hash(treedef) == hash(jax.tree.structure(nym.zeros({"a": 5, "b": 7})))
    back = jax.tree.unflatten(treedef, leaves)
    assert back.array is plain and back.names is x.names
    [(path, leaf)], treedef = jax.tree_util.tree_flatten_with_path({"w": x})
    assert leaf is plain and jax.tree_util.keystr(path) == "['w'].array" and treedef == jax.tree.structure({"w": x})


def test_rebuilding_checks_nothing():
    for leaf in (None, True, object(), "text", 3, plain[0], jax.ShapeDtypeStruct((), jnp.int32)):
        y = jax.tree.map(lambda _, leaf=leaf: leaf, x)
        assert y.array is leaf and y.names == ("a", "b")
        assert repr(y).startswith("NamedArray(")
        assert jax.tree.unflatten(jax.tree.structure(x), [leaf]).array is leaf


def test_python_numbers():
    assert (int(number), float(number), complex(number), bool(number)) == (2, 2.5, 2.5 + 0j, True)
    assert operator.index(nym.named(3, ())) == 3 and list(range(nym.named(2, ()))) == [0, 1]
    assert f"{number:.3f}" == "2.500" and f"{nym.named(3, ()):>4d}" == "   3" and f"{number}" == repr(number)
    with refusal("unsupported format string", TypeError):
        f"{x:.3f}"
    assert number.item() == 2.5 and nym.named([7], "a").item() == 7 and number.scalar() is number.array
    with refusal("the truth value of (a: 2, b: 3) is ambiguous; use `x.all()` or `x.any()`"):
        bool(x)
    for convert in (int, float, complex, operator.index):
        with refusal("(a: 2, b: 3) is not a scalar; reduce or index its axes first", TypeError):
            convert(x)
    with refusal("(a: 2, b: 3) is not a scalar; reduce or index its axes first"):
        x.scalar()
    with refusal("(a: 2, b: 3) is not a single element"):
        x.item()
    np.testing.assert_allclose(round(nym.named([1.26], "i"), 1).array, [1.3], rtol=1e-6)


def test_hashing_and_matmul_are_refused():
    with refusal("unhashable type", TypeError):
        hash(x)
    for other in (x, plain, values, 2.0):
        for multiply in (lambda other=other: x @ other, lambda other=other: other @ x):
            with refusal("`@` cannot name the axes to contract; use `dot(x, y, axis=...)`.", TypeError):
                multiply()


UNARY = "neg pos abs invert".split()
BINARY = "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift lt le gt ge eq ne".split()


def test_operators():
    whole, row = np.arange(1, 7, dtype=np.int32).reshape(2, 3), np.array([2, 3, 1], np.int32)
    number = np.int32(2)

    @jax.jit
    def compute(y, v):
        binary = {name: [getattr(operator, name)(*pair) for pair in ((v, y), (2, y), (number, y))] for name in BINARY}
        return {name: getattr(operator, name)(-y) for name in UNARY}, binary

    unary, binary = compute(nym.named(whole, ("a", "b")), nym.named(row, "b"))
    for name, result in unary.items():
        expected = getattr(operator, name)(-whole)
        assert result.names == ("a", "b") and result.dtype == expected.dtype and np.array_equal(result.array, expected)
    for name, results in binary.items():
        for result, pair in zip(results, ((row, whole), (2, whole), (number, whole)), strict=True):
            expected = getattr(operator, name)(*pair)
            assert isinstance(result, NamedArray) and result.names == ("a", "b"), name
            assert result.dtype == (np.float32 if name == "truediv" else expected.dtype), name
            np.testing.assert_allclose(result.array, expected, rtol=1e-6)


def test_nothing_but_arrays_is_equal():
    for other in (None, "a", object(), {}, ()):
        assert (x == other) is False and (x != other) is True and (other == x) is False and (other != x) is True


def test_numpy_never_makes_an_object_array():
    assert np.asarray(x).dtype == np.float32 and np.array_equal(np.asarray(x), plain)
    assert np.asarray(x, dtype=int).dtype == int
    copied = np.array(x)
    copied[0, 0] = 9
    assert copied[0, 0] == 9 and x.array[0, 0] == 0
    assert jnp.asarray(x).shape == (2, 3) and np.stack([x, x]).shape == (2, 2, 3)
    for function in (np.add, np.multiply, np.equal):
        with refusal("A plain array of shape (2, 3) has no axis names", TypeError):
            function(np.ones((2, 3)), x)
    with refusal("`exp` of JAX would lose the names", TypeError):
        jnp.exp(x)


def test_methods_are_the_functions():
    functions = {name: fn for name, fn in vars(nym).items() if inspect.isfunction(fn)}
    members = {name: member for name, member in vars(NamedArray).items() if not isinstance(member, property)}
    shared = [name for name in members if name in functions and not name.startswith("_")]
    assert len(shared) > 25
    assert all(vars(NamedArray)[name] is functions[name] for name in shared)


def test_it_goes_through_jax(mapped):
    y = nym.shard(nym.ones({"batch": 8, "embed": 4}))
    assert jax.jit(lambda y: y)(y).sharding == y.sharding
    assert jax.device_get(y).array.sum() == 32
    shapes = jax.eval_shape(lambda y: y.sum("embed"), y)
    assert shapes.names == ("batch",) and shapes.shape == {"batch": 8}
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), y)
    assert jax.jit(lambda y: y.sum("embed")).lower(abstract).compile()(y).shape == {"batch": 8}
    sizes = []
    spec = jax.P("data", "model")
    doubled = jax.shard_map(lambda y: sizes.append(y.axes) or y * 2, in_specs=spec, out_specs=spec)(y)
    assert sizes == [nym.make_axes(batch=2, embed=2)] and doubled.shape == y.shape and doubled.array.sum() == 64
