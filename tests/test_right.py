"""What goes wrong with named arrays in Haliax and is right here, as far as no other file tests it: one test each."""

import threading
from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


x = nym.named(np.arange(12.0, dtype=np.float32).reshape(4, 3), ("x", "y"))


def test_a_layer_whose_input_lacks_its_axis_says_so():
    layer = nym.nn.Linear.init(Axis("embed", 4), Axis("mlp", 2), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"Linear.*'embed'.*\(batch: 2, emebd: 4\)"):
        layer(nym.ones({"batch": 2, "emebd": 4}))


def test_checks_hold_in_all_threads_at_once():
    accepted: list[nym.NamedArray] = []

    def construct() -> None:
        for _ in range(200):
            jax.tree.map(lambda leaf: leaf, x)
            try:
                accepted.append(nym.NamedArray(np.ones((2, 2)), (Axis("x", 8), Axis("y", 4))))
            except ValueError:
                pass

    threads = [threading.Thread(target=construct) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not accepted


def test_errors_name_the_axes_and_never_show_values():
    for compute, text in (
        (lambda: x + nym.ones({"x": 5}), "axis 'x' has size 4 and size 5 in (x: 4, y: 3) and (x: 5)"),
        (lambda: x["q", 0], "no axis 'q' in (x: 4, y: 3)"),
        (lambda: x["x", True], "axis 'x' of (x: 4, y: 3)"),
        (lambda: jax.lax.scan(lambda carry, row: (carry, -row), 0, x), "use `axonym.vmap` or `axonym.scan`"),
    ):
        with pytest.raises((ValueError, TypeError), match=escape(text)) as error:
            compute()
        assert "11." not in str(error.value)


def test_shapes_are_enough_to_lower_a_function():
    shapes = jax.eval_shape(lambda: x)
    assert nym.named_jit(lambda x: x * 2).lower(shapes).out_info.names == ("x", "y")


def test_results_are_sharded_by_their_own_names(auto_mesh):
    label = nym.named_jit(lambda x: nym.named(x, ("x", "y") if x.ndim == 2 else ("y", "x", "z")[: x.ndim]))
    with jax.set_mesh(auto_mesh), nym.axis_mapping(x="data", y="model"):
        specs = {(4, 2): ("data", "model"), (2, 4, 3): ("model", "data", None), (2,): ("model",), (): ()}
        for shape, spec in specs.items():
            wanted = jax.NamedSharding(auto_mesh, jax.P(*spec))
            assert label(jnp.ones(shape)).sharding.is_equivalent_to(wanted, len(shape))


def test_a_named_scalar_has_a_gradient():
    assert nym.grad(lambda x: (x * x).sum())(x).names == ("x", "y")


def test_jax_shard_map_takes_named_arrays(auto_mesh):
    spec = jax.sharding.PartitionSpec("data")
    identity = jax.shard_map(lambda x: x * 1, mesh=auto_mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(identity(x).array, x.array)


def test_a_linear_layer_is_a_product_and_a_sum():
    layer = nym.nn.Linear.init(Axis("embed", 4), Axis("mlp", 2), key=jax.random.key(0))
    text = jax.jit(lambda layer, x: layer(x)).lower(layer, nym.ones({"batch": 2, "embed": 4})).as_text()
    assert text.count("dot_general") == 1 and "multiply" not in text and "sharding" not in text.lower()


def test_trees_are_taken_apart_at_leaves_of_the_users_choice():
    tree = {"x": x, "pair": (1, 2)}
    assert len(nym.tree_util.tree_leaves(tree, is_leaf=lambda node: isinstance(node, tuple))) == 2
    assert nym.tree.structure(tree, is_leaf=lambda node: isinstance(node, tuple)).num_leaves == 2


def test_one_name_for_both_axes_of_a_weight_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"'embed'.*`rename`|'embed'.*alias"):
        nym.nn.Linear.init(Axis("embed", 4), Axis("embed", 4), key=jax.random.key(0))
