"""`fsdp`: fully sharded data parallelism, as `named_jit` with two mappings."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from ..mapping._mapping import ResourceMapping
from ._named_jit import NamedJit, named_jit


Args = ParamSpec("Args")
R = TypeVar("R")


@overload
def fsdp(
    fn: Callable[Args, R], parameter_mapping: ResourceMapping, compute_mapping: ResourceMapping, **options: Any
) -> NamedJit[Args, R]: ...
@overload
def fsdp(
    parameter_mapping: ResourceMapping, compute_mapping: ResourceMapping, **options: Any
) -> Callable[[Callable[Args, R]], NamedJit[Args, R]]: ...
def fsdp(fn: Any = None, parameter_mapping: Any = None, compute_mapping: Any = None, **options: Any) -> Any:  # pyright: ignore[reportInconsistentOverload]
    """Compiles a function whose arguments and results are sharded one way and whose computation is sharded another.

    That is fully sharded data parallelism: parameters and optimizer state are sharded over the data axis between steps,
    and each layer gathers its own parameters when it uses them. It is `named_jit` with `parameter_mapping` for
    arguments and results, and `compute_mapping` active inside.

    A layer gathers each parameter from its shards under `parameter_mapping`, and the gradient is sharded the same way
    again: a reduce-scatter where the compiler has one. To gather all parameters once instead, do so and call the layers
    inside `with axis_mapping(compute_mapping)`, which takes parameters as they are.

    Args:
        fn: The function; left out, a decorator is returned.
        parameter_mapping: Mapping of arguments and results. It applies to the batch as well, so map its axis here too;
            no argument can have two axes on one mesh axis. For a batch of embeddings, which would, also give
            `in_axis_resources=(parameter_mapping, compute_mapping)`, an entry for each argument.
        compute_mapping: Mapping that is active while the function is traced.
        **options: The other options of `named_jit`. `in_axis_resources` and `out_axis_resources` replace
            `parameter_mapping` for arguments or results.

    Returns:
        A compiled function; see `named_jit`.

    Raises:
        TypeError: If one of the two mappings is missing.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> compute = {"batch": "data", "mlp": "model"}
        >>> @nym.fsdp({**compute, "embed": "data"}, compute)
        ... def step(weight, batch):
        ...     return weight - nym.dot(batch, weight, axis="pixel").mean()
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     step(nym.ones({"pixel": 3, "embed": 8}), nym.ones({"batch": 8, "pixel": 3})).sharding.spec
        P(None, 'data')
    """
    if fn is not None and not callable(fn):  # the mappings alone, the first of them by position
        mappings = [one for one in (fn, parameter_mapping, compute_mapping) if one is not None]
        fn, parameter_mapping, compute_mapping = None, *(mappings if len(mappings) == 2 else (None, None))
    if parameter_mapping is None or compute_mapping is None:
        raise TypeError("`fsdp` takes two mappings: one for parameters, and one for computing.")
    defaults = {"in_axis_resources": parameter_mapping, "out_axis_resources": parameter_mapping}
    return named_jit(fn, compute_mapping, **{**defaults, **options})
