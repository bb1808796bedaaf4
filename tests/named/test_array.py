"""`NamedArray` itself: how it is made and shown, that it never changes, and how it goes with JAX, NumPy and Python."""

import copy
import inspect
import operator
import pickle
import sys
import threading
from re import escape

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, NamedArray


plain = jnp.arange(6.0).reshape(2, 3)
x = NamedArray(plain, ("a", "b"))
number = nym.named(2.5, ())


@pytest.mark.parametrize(
    "axes",
    [
        ("a", "b"),
        ["a", Axis("b", 3)],
        nym.make_axes(a=2, b=3),
        {"a": 2, "b": 3},
        {"a": None, "b": 3},
        x.shape,
        (name for name in "ab"),
    ],
    ids=["names", "mixed", "axes", "mapping", "unsized", "shape", "generator"],
)
def test_axes_are_given_in_many_ways(axes):
    y = NamedArray(plain, axes)
    assert y.names == ("a", "b") and y.array is plain


def test_one_axis_needs_no_tuple():
    assert NamedArray(plain[0], "b").names == NamedArray(plain[0], Axis("b", 3)).names == ("b",)
    assert NamedArray(plain[0, 0], ()).names == ()


@pytest.mark.parametrize("make", [NamedArray, nym.named])
@pytest.mark.parametrize(
    ("axes", "kind", "text"),
    [
        (("a",), ValueError, "an array of shape (2, 3) has 2 axes, 1 are named: (a)"),
        (("a", "b", "c"), ValueError, "an array of shape (2, 3) has 2 axes, 3 are named: (a, b, c)"),
        ((), ValueError, "an array of shape (2, 3) has 2 axes, 0 are named: ()"),
        (
            ("a", "a"),
            ValueError,
            "axis 'a' occurs more than once in (a, a); names are unique within an array: `rename`",
        ),
        (("a", ""), ValueError, "The name of an axis must not be empty."),
        (("a", Axis("b", 4)), ValueError, "axis 'b' has size 3 here, 4 was asked for"),
        ({"a": 3, "b": 3}, ValueError, "axis 'a' has size 2 here, 3 was asked for"),
        (("a", 1), TypeError, "An axis is given by an `Axis` or by its name, not by 1."),
        (1, TypeError, "An axis is given by an `Axis` or by its name, not by 1."),
        (plain, TypeError, "An axis is given by an `Axis` or by its name, not by an array of shape (2, 3)."),
    ],
)
def test_what_does_not_fit_is_refused(make, axes, kind, text):
    with pytest.raises(kind, match=f"^{escape(text)}"):
        make(plain, axes)


def test_what_is_no_array_is_refused():
    for value in ([1, 2], 1.0, None, "abc"):
        with pytest.raises(TypeError, match=f"holds an array, not a {type(value).__name__}; `axonym.named` makes one"):
            NamedArray(value, "a")
    for make in (NamedArray, nym.named):
        with pytest.raises(TypeError, match=escape("(a: 2, b: 3) has names already; use `rename` to change them.")):
            make(x, ("c", "d"))


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
        with pytest.raises(AttributeError, match=f"never changes, so '{name}' cannot be set; make a new one"):
            setattr(x, name, 1)
        with pytest.raises(AttributeError, match=f"never changes, so '{name}' cannot be deleted"):
            delattr(x, name)
    assert not hasattr(x, "__dict__")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_equal(copied):
    for original in (x, number, NamedArray(np.ones(3), "a")):
        y = copied(original)
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


@pytest.mark.parametrize(
    "leaf", [None, True, object(), "text", 3, plain[0], jax.ShapeDtypeStruct((), jnp.int32), [1, 2]]
)
def test_rebuilding_checks_nothing(leaf):
    y = jax.tree.map(lambda _: leaf, x)
    assert y.array is leaf and y.names == ("a", "b")
    assert repr(y).startswith("NamedArray(")
    assert jax.tree.unflatten(jax.tree.structure(x), [leaf]).array is leaf


def test_trees_with_is_leaf():
    tree = {"x": x, "rest": [number, 1]}
    named = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, NamedArray))
    assert named[0] is number and named[2] is x and len(named) == 3
    assert jax.tree.structure(tree, is_leaf=lambda node: isinstance(node, NamedArray)).num_leaves == 3
    arrays, rest = eqx.partition(tree, eqx.is_array)
    assert eqx.combine(arrays, rest)["x"].array is plain
    assert eqx.tree_at(lambda tree: tree["x"].array, tree, plain + 1)["x"].names == ("a", "b")


def test_python_numbers():
    assert (int(number), float(number), complex(number), bool(number)) == (2, 2.5, 2.5 + 0j, True)
    assert operator.index(nym.named(3, ())) == 3 and list(range(nym.named(2, ()))) == [0, 1]
    assert f"{number:.3f}" == "2.500" and f"{nym.named(3, ()):>4d}" == "   3" and f"{number}" == repr(number)
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{x:.3f}"
    assert number.item() == 2.5 and nym.named([7], "a").item() == 7
    with pytest.raises(
        ValueError, match=escape("the truth value of (a: 2, b: 3) is ambiguous; use `x.all()` or `x.any()`")
    ):
        bool(x)
    for convert in (int, float, complex, operator.index):
        with pytest.raises(TypeError, match=escape("(a: 2, b: 3) is not a scalar; reduce or index its axes first")):
            convert(x)
    with pytest.raises(ValueError, match=escape("(a: 2, b: 3) is not a single element")):
        x.item()


def test_scalar_is_the_plain_array_of_no_axes():
    assert number.scalar() is number.array
    with pytest.raises(ValueError, match=escape("(a: 2, b: 3) is not a scalar; reduce or index its axes first")):
        x.scalar()


def test_a_loss_without_axes_is_what_jax_differentiates():
    gradient = jax.grad(lambda x: (x * x).sum().scalar())(x)
    assert gradient.names == ("a", "b") and np.array_equal(gradient.array, 2 * plain)
    counted = jax.lax.while_loop(lambda n: (n < 5).scalar(), lambda n: n + 2, nym.named(0, ()))
    assert counted.item() == 6
    assert jax.lax.cond((number > 2).scalar(), lambda: 1, lambda: 2) == 1


def test_hashing_is_refused():
    with pytest.raises(TypeError, match="unhashable type"):
        hash(x)


@pytest.mark.parametrize("other", [x, plain, np.ones(3), 2.0])
def test_matmul_is_refused(other):
    for multiply in (lambda: x @ other, lambda: other @ x):
        with pytest.raises(TypeError, match=escape("`@` cannot name the axes to contract; use `dot(x, y, axis=...)`.")):
            multiply()


OPERATORS = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "truediv": jnp.divide,
    "floordiv": jnp.floor_divide,
    "mod": jnp.mod,
    "pow": jnp.power,
    "and_": jnp.bitwise_and,
    "or_": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "lshift": jnp.left_shift,
    "rshift": jnp.right_shift,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "neg": jnp.negative,
    "pos": jnp.positive,
    "abs": jnp.abs,
    "invert": jnp.bitwise_not,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    op, reference = getattr(operator, name), OPERATORS[name]
    y = nym.named([[1, 2, 3], [4, 5, 6]], ("a", "b"))
    if name in ("neg", "pos", "abs", "invert"):
        assert op(-y).names == ("a", "b") and np.array_equal(op(-y).array, reference(-y.array))
        return
    v = nym.named([2, 3, 1], "b")
    for left, right, expected in (
        (y, y, reference(y.array, y.array)),
        (v, y, reference(v.array[None], y.array)),
        (y, 2, reference(y.array, 2)),
        (np.int32(2), y, reference(np.int32(2), y.array)),
    ):
        result = op(left, right)
        assert isinstance(result, NamedArray) and result.names == ("a", "b") and result.dtype == expected.dtype
        assert np.array_equal(result.array, expected)


def test_every_operator_is_tested():
    own = {name.strip("_") for name, _ in inspect.getmembers(NamedArray, callable) if name.startswith("__")}
    unary_and_binary = {name for name in own if hasattr(operator, name) or hasattr(operator, f"{name}_")}
    known = {name.strip("_") for name in OPERATORS} | {"matmul", "index", "getitem", "delitem", "setitem", "contains"}
    assert unary_and_binary - known <= {"call"}


@pytest.mark.parametrize("other", [None, "a", object(), {}, ()])
def test_nothing_but_arrays_is_equal(other):
    assert (x == other) is False and (x != other) is True and (other == x) is False and (other != x) is True


def test_numpy_never_makes_an_object_array():
    assert np.asarray(x).dtype == np.float32 and np.array_equal(np.asarray(x), plain)
    assert np.asarray(x, dtype=int).dtype == int
    copied = np.array(x)
    copied[0, 0] = 9
    assert copied[0, 0] == 9 and x.array[0, 0] == 0
    assert jnp.asarray(x).shape == (2, 3) and np.stack([x, x]).shape == (2, 2, 3)
    for function in (np.add, np.multiply, np.equal):
        with pytest.raises(TypeError, match=r"A plain array of shape \(2, 3\) has no axis names"):
            function(np.ones((2, 3)), x)
    with pytest.raises(TypeError, match="`exp` of JAX would lose the names"):
        jnp.exp(x)


def test_conversions():
    assert x.astype(int).dtype == jnp.int32 and x.astype(int).names == ("a", "b")
    assert x.block_until_ready() is x
    assert jax.jit(lambda x: x.block_until_ready().astype(jnp.bfloat16))(x).dtype == jnp.bfloat16


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


def test_several_names_in_one_string_are_taken_for_one():
    with pytest.raises(ValueError, match=escape("1 are named: (a b); give several names as a tuple")):
        nym.named(plain, "a b")


def test_round_of_python():
    np.testing.assert_array_equal(round(nym.named([1.26], "i"), 1).array, jnp.round(jnp.array([1.26]), 1))
