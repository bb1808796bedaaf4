import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from axonym.planner import assert_fits
from tests.planner.programs import COMPUTE, STORED, make_mesh, update
from tests.planner.test_memory_report import X, make_stack


def test_assertion_explains_what_does_not_fit():
    step, stack = nym.fsdp(update, STORED, COMPUTE), make_stack()
    with jax.set_mesh(make_mesh("cpu")):
        assert_fits(step, (stack, X), device="v5e")
        message = r"takes 1[0-9.]+ MiB on each device, .* MiB more than the 1 MiB: temp"
        with pytest.raises(AssertionError, match=message) as e:
            assert_fits(step, (stack, X), 2**20)
    assert "parameters 4 MiB" in str(e.value)
    assert "(`microbatch`)" in str(e.value)
    assert "input of a layer: 256 KiB saved" in str(e.value)
    with pytest.raises(
        AssertionError, match=r"more than the 15\.8 GiB of v5e: parameters 32 GiB.*shard the parameters"
    ):
        assert_fits(jax.jit(lambda x: x.sum()), (jax.ShapeDtypeStruct((2**33,), jnp.float32),), "v5e")
    x = nym.NamedArray(jax.ShapeDtypeStruct((64, 2**40), jnp.bfloat16), ("batch", "embed"))
    machine = {"mesh": {"data": 8}, "mapping": {"batch": "data"}, "cache": False}
    with pytest.raises(
        AssertionError, match="more than the 4 TiB of cpu: parameters 16 TiB, results 16 TiB; shard the p"
    ):
        assert_fits(lambda x: x * 2, (x,), "cpu:8", **machine)
    with pytest.raises(TypeError, match="go with the description of a machine"):
        assert_fits(lambda x: x * 2, (x,), "cpu", **machine)
    with pytest.raises(TypeError, match="`args` is a tuple of the arguments of the function, not a NamedArray"):
        assert_fits(lambda x: x * 2, x, "cpu")
    for device in (2.5, True, [1]):
        with pytest.raises(TypeError, match="`device` is a name such as 'v5e', a `Hardware` or a number of bytes, not"):
            assert_fits(lambda x: x * 2, (jnp.ones(1),), device=device)
    with pytest.raises(ValueError, match="`device`, a number of bytes, must be at least 0, not -1"):
        assert_fits(lambda x: x * 2, (jnp.ones(1),), device=-1)
    with pytest.raises(TypeError, match="`device` is what the program has to fit into"):
        assert_fits(lambda x: x * 2, (nym.ones({"embed": 8}),))


def test_machine_takes_the_axes_of_the_active_mesh(mesh):
    x = nym.NamedArray(jax.ShapeDtypeStruct((64, 2**40), jnp.bfloat16), ("batch", "embed"))
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": ("data", "model")}):
        program = nym.planner.compile_for(lambda x: x * 2, x, devices="cpu:8", cache=False)
        assert program.mesh.shape == mesh.shape and program.mesh.axis_types == mesh.axis_types
        with pytest.raises(AssertionError, match="more than the 4 TiB of cpu: parameters 16 TiB"):
            assert_fits(lambda x: x * 2, (x,), "cpu:8", cache=False)
        message = r"the active mesh \(data: \d, model: \d\) has 8 devices, but 'v5e:4x4' has 16; .* `mesh={'data': 16}`"
        with pytest.raises(ValueError, match=message):
            assert_fits(lambda x: x * 2, (x,), "v5e:4x4")
