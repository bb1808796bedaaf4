"""What `fold`, `scan`, `map` and `vmap` cost without a clock: equations, functions entered, traces, what is kept."""

import gc
import weakref

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import axonym as nym
from benchmarks.performance.transforms import EMBED, LAYERS, TRANSFORMS, Leaves, added, kept
from tests.counting import all_calls, own_calls_per_array, primitives


FEW, MANY = 2, 22
STEPS, SIZE = 3, 8
LOOPS = ("fold", "scan", "map")


def leaves(make, count):
    """Returns a carry and arrays with the layer axis, as `make` makes them of plain arrays and names."""
    ones = jax.device_put(np.ones((STEPS, SIZE), np.float32))
    stacked = [make(ones + 0, (LAYERS, EMBED)) for _ in range(count)]
    return Leaves(make(jax.device_put(np.zeros(SIZE, np.float32)), (EMBED,)), stacked)


def applied(what, seen):
    """Returns a function of leaves that applies one and the same body, which notes each time that it runs."""

    def body(carry, layer):
        seen.append(None)
        after = added(carry, layer)
        return (after, after) if what == "scan" else after

    def of_layer(layer):
        seen.append(None)
        return added(layer[0], layer[1:])

    if what == "map":
        return lambda x: nym.map(of_layer, LAYERS)(x.stacked)
    return lambda x: getattr(nym, what)(body, LAYERS)(x.carry, x.stacked)


@pytest.fixture(params=["one device", "auto", "explicit"])
def divided(request):
    """What divides a plain array along the axis that its slices have, on each kind of mesh and on none."""
    if request.param == "one device":
        yield lambda array, names: array
        return
    mesh = request.getfixturevalue(f"{request.param}_mesh")
    with jax.set_mesh(mesh), nym.axis_mapping({EMBED: "data"}):
        yield lambda array, names: jax.device_put(
            array, NamedSharding(mesh, jax.P(*("data" if name == EMBED else None for name in names)))
        )


@pytest.mark.parametrize("what", TRANSFORMS)
def test_as_much_is_traced_as_by_hand_at_every_call(what, divided):
    x, plain = leaves(lambda array, names: nym.named(divided(array, names), names), 3), leaves(divided, 3)
    expected = primitives(lambda x: TRANSFORMS[what]["JAX"](added, x), plain)
    apply = applied(what, [])
    for _ in range(3):
        assert primitives(lambda x: apply(x), x) == (expected[:-1] if what == "map" else expected)


@pytest.mark.parametrize("what", LOOPS)
def test_an_axis_behind_others_is_moved_once(what):
    x = Leaves(nym.zeros({EMBED: SIZE}), [nym.ones({EMBED: SIZE, LAYERS: STEPS})])
    found = primitives(lambda x: TRANSFORMS[what]["Axonym"](added, x), x)
    assert found.count("transpose") == 1


def test_the_gradient_of_a_loop_has_the_same_equations_as_by_hand(divided):
    def loss(who, sin):
        def total(x):
            return TRANSFORMS["fold"][who](lambda carry, layer: sin(carry * layer[0]), x).sum()

        return total

    x, plain = leaves(lambda array, names: nym.named(divided(array, names), names), 1), leaves(divided, 1)
    named = primitives(jax.grad(lambda x: loss("Axonym", nym.sin)(x).array), x)
    assert named == primitives(jax.grad(loss("JAX", jnp.sin)), plain)


def traced(what, who, x):
    """Returns a call that traces a function that no one has seen."""
    apply = TRANSFORMS[what][who]
    return lambda: jax.make_jaxpr(lambda x: apply(lambda carry, layer: kept(carry, layer), x))(x)


@pytest.mark.parametrize("what", TRANSFORMS)
def test_the_machinery_enters_few_more_functions_than_by_hand(what):
    def for_each(who, make):
        few, many = (all_calls(traced(what, who, leaves(make, count))) for count in (FEW, MANY))
        return many - few

    # Loops are traced into a jaxpr first, which tells what their steps take from around them.
    most, limit = (9, 1.3) if what == "vmap" else (10, 1.5)
    assert 0 < own_calls_per_array(lambda count: traced(what, "Axonym", leaves(nym.named, count))) <= most
    assert for_each("Axonym", nym.named) <= limit * for_each("JAX", lambda array, _: array)


@pytest.mark.parametrize("what", TRANSFORMS)
def test_no_argument_is_kept_and_a_function_goes_with_what_it_holds(what):
    held = jnp.ones(SIZE)

    def body(carry, layer):
        return added(carry, layer) + nym.named(held, (EMBED,))

    x = leaves(nym.named, 2)
    for _ in range(3):
        TRANSFORMS[what]["Axonym"](body, x)
        jax.make_jaxpr(lambda x: TRANSFORMS[what]["Axonym"](body, x))(x)
    arguments = [weakref.ref(leaf) for leaf in jax.tree.leaves(x)]
    gone = [weakref.ref(body), weakref.ref(held)]
    del x
    gc.collect()
    assert [one() for one in arguments] == [None] * len(arguments)
    del body, held
    gc.collect()
    assert [one() for one in gone] == [None, None]


@pytest.mark.parametrize("what", LOOPS)
def test_a_compiled_loop_is_traced_once_and_programs_of_eager_loops_are_discarded(what):
    x, seen, programs = leaves(nym.named, 1), [], jax.extend.backend.get_backend().live_executables
    compiled = jax.jit(applied(what, seen))
    for _ in range(3):
        compiled(x)
    assert len(seen) <= 2  # JAX may trace a body twice
    TRANSFORMS[what]["Axonym"](added, x)
    gc.collect()
    before = len(programs())
    for _ in range(3):
        TRANSFORMS[what]["Axonym"](added, x)
    gc.collect()
    assert len(programs()) == before
