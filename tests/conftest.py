"""Eight CPU devices for every test, the two kinds of mesh, random keys, and a clean state."""

import gc
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import axonym as nym

from . import compiling


CI = bool(os.environ.get("CI"))

# Before JAX starts: no backend is made until the first array is. Most of the time goes into compiling programs that
# run once, so machine code is not optimised, here and in the processes that tests start; programs stay the same.
compiling.compile_faster()
jax.config.update("jax_num_cpu_devices", 8)
# Programs that are in flight at once on many virtual devices can keep each other waiting for threads.
jax.config.update("jax_cpu_enable_async_dispatch", False)
if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")
# Many programs are compiled several times: by both workers, for several tests, and after `forget_compiled`.
# Who gives a folder finds them again in the next run, which then takes a third of the time.
MAKES_CACHE = "AXONYM_TESTS_CACHE" not in os.environ
if MAKES_CACHE:
    os.environ["AXONYM_TESTS_CACHE"] = tempfile.mkdtemp(prefix="axonym-tests-")
jax.config.update("jax_compilation_cache_dir", os.environ["AXONYM_TESTS_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
# Arrays are lined up by name. Where JAX would line them up by position, a name has been lost.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiling takes longer than any deadline; and a fixture may be shared by the examples of one
# test, because what the fixtures here give does not change.
hypothesis.settings.register_profile(
    "axonym",
    deadline=None,
    derandomize=CI,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.load_profile("axonym")


# The collector is kept away from what importing modules and tracing functions make and drop.
gc.set_threshold(50_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-tests", choices=["file", "folder"], help="run the first test of each, a sample of all")
    parser.addoption("--thorough", action="store_true", help="also run the tests that are marked as thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out thorough tests without `--thorough`, and keeps the first ones for `--first-tests`."""
    if not config.getoption("thorough"):
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]
    if sample := config.getoption("first_tests"):
        first: dict[Path, pytest.Item] = {}
        for item in items:
            is_alone = sample == "file" or item.path.parent == Path(__file__).parent
            group = item.path if is_alone else item.path.parent
            first.setdefault(group, item)
        items[:] = first.values()


def pytest_collection_finish() -> None:
    """Keeps the collector away from modules and tests, which stay."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Removes the compiled programs at the end of the run, once all workers are done."""
    if MAKES_CACHE:
        shutil.rmtree(os.environ.pop("AXONYM_TESTS_CACHE"), ignore_errors=True)


class GetKey:
    """Gives a fresh random key with each call; its repr has the seed, so a failure shows it."""

    def __init__(self, seed: int):
        self.seed = seed
        self.calls = 0

    def __call__(self) -> jax.Array:
        self.calls += 1
        return jax.random.fold_in(jax.random.key(self.seed), self.calls)

    def __repr__(self) -> str:
        return f"GetKey(seed={self.seed}) (to repeat: AXONYM_SEED={self.seed})"


@pytest.fixture
def getkey() -> GetKey:
    """Random keys: other ones in each run, unless `AXONYM_SEED` or `CI` is set."""
    seed = os.environ.get("AXONYM_SEED")
    if seed is None:
        return GetKey(0 if CI else random.randrange(2**31))
    return GetKey(int(seed))


class Draw:
    """Draws arrays with NumPy, and puts them onto a device without `jnp.asarray`: there is nothing to compile."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def __call__(self, low: float = -2.0, high: float = 2.0, /, **sizes: int) -> nym.NamedArray:
        """An array of these axes with values from `low` to `high`."""
        values = self.random.uniform(low, high, size=tuple(sizes.values()))
        return nym.named(jax.device_put(values.astype(np.float32)), tuple(sizes))

    def integers(self, low: int, high: int, /, **sizes: int) -> nym.NamedArray:
        """An array of these axes with integers from `low` up to but not including `high`."""
        return nym.named(jax.device_put(self.random.integers(low, high, size=tuple(sizes.values()))), tuple(sizes))


@pytest.fixture
def draw(getkey: GetKey) -> Draw:
    return Draw(getkey.seed)


def _mesh(axis_type: AxisType) -> Mesh:
    if jax.device_count() < 8:
        pytest.skip(f"This needs 8 devices, and there are {jax.device_count()}.")
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type, axis_type))


@pytest.fixture(scope="session")
def auto_mesh() -> Mesh:
    """A (data: 4, model: 2) mesh on which the compiler chooses shardings; not entered."""
    return _mesh(AxisType.Auto)


@pytest.fixture(scope="session")
def explicit_mesh() -> Mesh:
    """A (data: 4, model: 2) mesh on which shardings are part of the types; not entered."""
    return _mesh(AxisType.Explicit)


@pytest.fixture(autouse=True)
def no_mesh() -> Iterator[None]:
    """Every test starts without a mesh in force, and leaves none behind."""
    with jax.set_mesh(None):
        yield


_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    """Now and then forgets what was compiled: thousands of programs take gigabytes and slow the collector down."""
    yield
    if next(_tests_run) % 500 == 0:
        compiling.forget_compiled()


@pytest.fixture(params=["auto", "explicit"])
def mesh(request: pytest.FixtureRequest, no_mesh: None) -> Iterator[Mesh]:
    """Runs the test on both meshes, each entered."""
    chosen: Mesh = request.getfixturevalue(f"{request.param}_mesh")
    with jax.set_mesh(chosen):
        yield chosen
