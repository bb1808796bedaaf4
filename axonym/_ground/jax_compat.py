"""Everything that relies on what JAX does not promise.

Each entry states its assumption, which holds in jax 0.12.0 and 0.12.0.1, and the effect of a change in JAX.
`tests/ground/test_jax_compat.py` has a test for each, so that a new version of JAX shows which one broke.
"""

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable
from itertools import islice
from traceback import walk_stack
from types import MethodType
from typing import Any

import jax
from jax._src.core import get_axis_env, remove_explicit_mesh_axis_names
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


TRACER: type = Tracer
"""The class of traced arrays. `jax.Array` is not a base class of it, so a type alone shows whether a value is traced.

`jax.core.Tracer` is not documented as public. Should it move, importing fails.
"""

COMPILE_EVENTS = "/jax/core/compile/"
"""The prefix of the events for which `jax.monitoring` reports how long tracing, lowering and compiling took.

Should the names change, `create_monitored_function` counts compilation as execution.
"""

LAYOUT_ERRORS = (AssertionError, NotImplementedError)
"""The errors of `jax.make_mesh` and `mesh_utils` if a mesh does not fit the network of its devices.

Should the types change, users see JAX's own error.
"""


def is_traced(array: Any) -> bool:
    """Returns whether an array is a tracer."""
    return isinstance(array, TRACER)


def get_compiled_ufunc(ufunc: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the compiled function that a ufunc of `jax.numpy` calls, such as `jax.numpy.add`.

    Calls of it are dispatched in C++, and operators of plain arrays share what is traced for it. Relies on the
    attribute `_func` of a `jax.numpy.ufunc`. Should it go, operations outside `jit` call the ufunc, which takes 1.5
    times as long.
    """
    return getattr(ufunc, "_func", ufunc)


class _ArraySignature(inspect.Signature):
    """The signature of a function of arrays and, last, one static argument; see `set_argument_names`."""

    def __init__(self, name_arrays: MethodType) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        super().__init__([inspect.Parameter(name, kind) for name in ("donated", "kept", "static")])
        self._name_arrays = weakref.WeakMethod(name_arrays)  # JAX's caches hold the signature

    def bind(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """Binds each array by the name that `name_arrays` gives it."""
        arguments = super().bind(*args, **kwargs)
        name_arrays = self._name_arrays()
        if name_arrays is not None:
            donated, kept, static = arguments.args
            # No path of an array is equal to this name.
            arguments.arguments = {**name_arrays(donated, kept), "<static>": static}
        return arguments


def set_argument_names(traced: Any, name_arrays: Any, fn: Any) -> None:
    """Makes `jax.jit` name the arrays of `traced(donated, kept, static)` in programs and errors by a method.

    It also makes them refer to the source of `fn`. Relies on `jax.jit` binding the arguments of a call to
    `inspect.signature(traced)` before it traces the call, and only then, and on `inspect.unwrap`. Should that change,
    arrays are named by position, `kept[0]`.
    """
    traced.__signature__ = _ArraySignature(name_arrays)
    if inspect.isfunction(fn):
        traced.__wrapped__ = fn


def is_tracing() -> bool:
    """Returns whether a function is being traced here, by `jax.jit` or by an eager transformation.

    Relies on `jax.sharding.get_mesh` raising a ValueError inside traced functions, and only there. Should it return the
    mesh instead, arrays inside `jit` would be moved rather than constrained, and JAX would raise at the first `shard`.
    """
    try:
        jax.sharding.get_mesh()
    except ValueError:
        return True
    return False


def find_platform(mesh: Any = None) -> str:
    """Returns the platform of a mesh, such as "cpu", "gpu" or "tpu", else that of JAX's default devices.

    Relies on the attribute `abstract_device` of an abstract mesh, which has the platform also of devices that are only
    described. Should it go, the default devices decide.

    Args:
        mesh: An abstract mesh; the active one if None.
    """
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    device = getattr(mesh, "abstract_device", None)
    platform = getattr(device, "platform", None) or jax.default_backend()
    return "gpu" if platform in ("cuda", "rocm") else platform


_STORE_METHODS = (
    "blocking_key_value_get",
    "blocking_key_value_get_bytes",
    "key_value_delete",
    "key_value_dir_get",
    "key_value_increment",
    "key_value_set",
    "key_value_set_bytes",
    "key_value_try_get",
)
"""The methods of the coordination service's client that `axonym.multihost` calls."""


def find_coordination_client() -> tuple[Any, int, int]:
    """Returns the client of JAX's coordination service, the index of this process and the number of processes.

    JAX has no public interface to the service that `jax.distributed.initialize` starts. Relies on the attribute
    `distributed.global_state` of `jax.experimental.multihost_utils`, which is a private module of JAX, and on the
    key-value methods of its client.

    Raises:
        RuntimeError: If this JAX keeps it elsewhere.
    """
    # Imported here, because it takes a tenth of the time of importing axonym, and only several processes need it.
    from jax.experimental import multihost_utils

    state = getattr(getattr(multihost_utils, "distributed", None), "global_state", None)
    client, process, count = (getattr(state, name, None) for name in ("client", "process_id", "num_processes"))
    missing_methods = [name for name in _STORE_METHODS if not hasattr(client, name)]
    if process is None or count is None or missing_methods:
        raise RuntimeError(
            f"JAX {jax.__version__} does not have its coordination service where Axonym looks for it "
            f"({', '.join(missing_methods) or 'the number of processes'} is missing); use another version of either"
        )
    return client, process, count


def is_deadline_error(error: Exception) -> bool:
    """Returns whether the coordination service raised because a key did not appear in time.

    Relies on the status code at the start of the message, as `is_missing_key_error` and `is_existing_key_error` do.
    Should codes change, a wait that times out raises JAX's own error in place of a TimeoutError with the missing
    processes.
    """
    return "DEADLINE_EXCEEDED" in str(error)


def is_missing_key_error(error: Exception) -> bool:
    return "NOT_FOUND" in str(error)


def is_existing_key_error(error: Exception) -> bool:
    return "ALREADY_EXISTS" in str(error)


def is_late_initialize_error(error: BaseException) -> bool:
    """Returns whether `jax.distributed.initialize` raised because the devices are in use already.

    Relies on the words "before" and "backend" in the message. Should they change, users see JAX's own message.
    """
    return isinstance(error, RuntimeError) and "before" in str(error) and "backend" in str(error)


def is_unknown_cluster_error(error: BaseException) -> bool:
    """Returns whether `jax.distributed.initialize` raised because it found no cluster that defines missing arguments.

    Relies on the word "defined" in the message. Should it change, users see JAX's own message.
    """
    return isinstance(error, ValueError) and "defined" in str(error)


def is_device_mismatch_error(error: BaseException) -> bool:
    """Returns whether JAX raised because arguments are on different devices, or on other devices than the mesh.

    Relies on phrases of its messages. Should they change, users see JAX's own message, without the path of the
    argument.
    """
    phrases = (
        "Received incompatible devices",
        "context mesh",
        "Mesh for all inputs should be equal",
        "is not found in mesh",
        "cannot compute on different meshes",  # of `make_mesh_error`
    )
    return isinstance(error, ValueError) and any(phrase in str(error) for phrase in phrases)


def is_sharding_type_error(error: BaseException) -> bool:
    """Returns whether JAX raised because shardings on an Explicit mesh are in conflict, or leave a result ambiguous.

    Relies on the name of the class, `ShardingTypeError`, which is not public, and on the message about loops such as
    that of `odeint`. Should they change, operands that are sharded differently are an error where a mapping could
    decide, and users see JAX's message.
    """
    return type(error).__name__ == "ShardingTypeError" or "Incompatible types for broadcasting" in str(error)


def is_mapped_twice_error(error: BaseException) -> bool:
    """Returns whether JAX raised because an array would be sharded over a mesh axis that a `vmap` around it maps over.

    Relies on phrases of its messages. Should they change, users see JAX's message.
    """
    phrases = "vmap spmd_axis_name", "partitions cannot overlap with unreduced axes"
    return isinstance(error, ValueError) and any(phrase in str(error) for phrase in phrases)


def is_missing_gradient_error(error: BaseException) -> bool:
    """Returns whether JAX raised because it has no gradient of a `jax.custom_batching.custom_vmap`.

    Relies on a phrase of its message. Should it change, users see JAX's message.
    """
    return isinstance(error, ValueError) and "Linearization failed to produce known values" in str(error)


_FUNCTION_MODULES = ("jax._src.numpy.", "jax._src.nn.", "jax._src.scipy.", "jax._src.random")


def find_refusing_jax_functions() -> list[str]:
    """Returns the functions of JAX that ask an argument for `__jax_array__` and refuse what lacks it, outermost first.

    To be called by `__getattr__`. It returns no function where JAX asks for another reason, as operators of `jax.Array`
    and `jax.numpy.asarray` do. Relies on `check_arraylike`, which functions of `jax.numpy` call with their name, and on
    the modules where JAX defines functions of arrays. Should they change, users see JAX's own error, without the named
    function.
    """
    frames = walk_stack(sys._getframe(2))  # from the caller of the `__getattr__` that calls this
    for frame, _ in islice(frames, 4):  # in the versions seen, the check is the third
        if frame.f_code.co_name.startswith("check_arraylike"):
            break
    else:
        return []
    if frame.f_locals.get("emit_warning"):  # it refuses nothing
        return []
    fun_name: str = frame.f_locals.get("fun_name", "")
    functions = [fun_name.rpartition(".")[2]]  # some have the name of their module
    for frame, _ in frames:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("jax."):
            break
        if module.startswith(_FUNCTION_MODULES) and not frame.f_code.co_name.startswith(("_", "<", "check_")):
            functions.append(frame.f_code.co_name)
    return functions[::-1]


def drop_filtering_note(error: BaseException) -> None:
    """Removes from an error the note by which JAX says that it has removed its frames from the traceback.

    Relies on the environment variable that the note names. Should it change, the note stays.
    """
    if notes := getattr(error, "__notes__", None):
        notes[:] = [note for note in notes if "JAX_TRACEBACK_FILTERING" not in note]


def make_linear_pair(
    name: str, gather: Callable[[Any, Any], Any], scatter: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """Returns an operation of JAX that computes `gather(array, plan)`, with `scatter(array, plan)` as its transpose.

    JAX's own ways to define a transpose do not suffice: `jax.custom_derivatives.linear_call` has no `vmap`,
    `jax.custom_vjp` no forward mode, and `jax.shard_map` of `reduced` arrays has no `vmap` in jax 0.12.0. Relies on the
    rules of primitives, of which the documentation of JAX has a tutorial, and on `update` of the types of arrays.
    Should they change, `fsdp` raises an error on Explicit meshes.

    Args:
        name: The name of the operation in jaxprs.
        gather: Function linear in an array with the sharding `plan.stored`, whose result has `plan.target`.
        scatter: Its transpose, from the type of cotangents of `plan.target` to that of `plan.stored`.
            `plan.add_dim(entry)` returns the plan for arrays with one more dimension in front and its entry in a spec.
    """
    forward, backward = Primitive(name), Primitive(f"{name}_transpose")

    def get_cotangent_sharding(plan: Any) -> Any:
        spec = plan.stored.spec
        return plan.stored.update(spec=spec.update(unreduced=spec.reduced, reduced=frozenset()))

    _define_linear(forward, gather, lambda plan: plan.target)
    _define_linear(backward, scatter, get_cotangent_sharding)
    ad.deflinear2(forward, lambda cotangent, _, plan: [backward.bind(cotangent, plan=plan)])
    ad.deflinear2(backward, lambda cotangent, _, plan: [forward.bind(cotangent, plan=plan)])
    return lambda array, plan: forward.bind(array, plan=plan)


def has_spmd_axes() -> bool:
    """Returns whether there is a `jax.vmap` with a `spmd_axis_name` around this.

    Relies on the names that it adds to JAX's environment of axes. Should they move, importing fails.
    """
    return bool(get_axis_env().spmd_axis_names)


def find_mapped_mesh_axes() -> tuple[str, ...]:
    """Returns the Explicit mesh axes over which a `jax.vmap` around this maps.

    Relies on the names that `jax.vmap` adds to JAX's environment of axes. Should they move, importing fails.
    """
    return tuple(get_axis_env().explicit_mesh_axis_names)


def use_mapped_mesh_axes() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which `jax.shard_map` may divide over the mesh axes that `find_mapped_mesh_axes` returns.

    JAX itself enters it to apply the rules of `jax.vmap`. Should it move, importing fails.
    """
    return remove_explicit_mesh_axis_names(find_mapped_mesh_axes())


def take_mapped_slice(array: Any, number: Any) -> Any:
    """Returns the slice of an array for one element of `jax.vmap`, where the array is no argument of the function.

    `jax.vmap` does not take arrays that are `reduced` over mesh axes, though its rules do. Relies on those rules being
    called at once. Should that change, pipelines raise an error.

    Args:
        array: Array whose first dimension is mapped over, and sharded as that of `number`.
        number: A scalar that `jax.vmap` maps over.
    """
    return _take_slice.bind(array, number)


_take_slice = Primitive("take_mapped_slice")
batching.primitive_batchers[_take_slice] = lambda operands, dims: (operands[0], 0)


def reduce_over_mapped_axes(array: Any, other: Any) -> Any:
    """Returns an array `reduced` also over mesh axes over which a `jax.vmap` maps the other operand of a product alone.

    Without them, JAX has no type for the gradient of the array if it is `reduced` over others. Relies on the rules of
    primitives, as `make_linear_pair` does.
    """
    return _reduce_over_mapped_axes.bind(array, other)


def _batch_reduce_over_mapped_axes(operands: tuple[Any, Any], dims: tuple[Any, Any]) -> tuple[Any, Any]:
    [array, other], [dim, other_dim] = operands, dims
    if dim is None:
        entry = jax.typeof(other).sharding.spec.partitions[other_dim]
        sharding = jax.typeof(array).sharding
        mapped_axes = {entry} if isinstance(entry, str) else {*(entry or ())}
        spec = sharding.spec.update(reduced=sharding.spec.reduced | mapped_axes)
        array = jax.reshard(array, sharding.update(spec=spec))
    return _reduce_over_mapped_axes.bind(array, other), dim


_reduce_over_mapped_axes = Primitive("reduce_over_mapped_axes")
_reduce_over_mapped_axes.def_impl(lambda array, other: array)
_reduce_over_mapped_axes.def_abstract_eval(lambda array, other: array)
mlir.register_lowering(_reduce_over_mapped_axes, lambda context, array, other: [array])
ad.defjvp(_reduce_over_mapped_axes, lambda tangent, array, other: _reduce_over_mapped_axes.bind(tangent, other), None)
ad.primitive_transposes[_reduce_over_mapped_axes] = lambda cotangent, array, other: (cotangent, None)
batching.primitive_batchers[_reduce_over_mapped_axes] = _batch_reduce_over_mapped_axes


def _define_linear(
    primitive: Primitive, compute: Callable[[Any, Any], Any], get_sharding: Callable[[Any], Any]
) -> None:
    """Defines the result of a primitive, how it is compiled, and its `vmap`."""

    def call(array: Any, *, plan: Any) -> Any:
        return compute(array, plan)

    def batch(arrays: tuple[Any], dims: tuple[int], *, plan: Any) -> tuple[Any, int]:
        [array], [dim] = arrays, dims
        entry = jax.typeof(array).sharding.spec.partitions[dim]
        return primitive.bind(jax.numpy.moveaxis(array, dim, 0), plan=plan.add_dim(entry)), 0

    primitive.def_impl(call)
    primitive.def_abstract_eval(lambda array, *, plan: array.update(sharding=get_sharding(plan)))
    mlir.register_lowering(primitive, mlir.lower_fun(call, multiple_results=False))
    batching.primitive_batchers[primitive] = batch


def differentiate_splash_attention(
    kernel: Any, query: Any, key: Any, value: Any, segment_ids: Any, averages: Any, log_sums: Any, d_averages: Any
) -> tuple[Any, Any, Any]:
    """Returns the gradients of query, key and value for a part of the keys, by a kernel of splash attention.

    Its own gradients take its keys to be all that there are. Relies on the signature of `_splash_attention_bwd`. Should
    it change, gradients of a ring that computes by splash attention raise an error.

    Args:
        kernel: What `splash_attention.make_splash_mha` returns.
        query: Queries of shape (heads, queries, vectors).
        key: Some of the keys.
        value: Their values.
        segment_ids: The segment ids of queries and keys, or None.
        averages: The averages of the values of all keys.
        log_sums: The log-sum-exps of the scores of all keys.
        d_averages: The gradients of the averages.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import _splash_attention_bwd

    saved = query, key, value, segment_ids, None, averages, log_sums, kernel.dq_mask_info, kernel.dkv_mask_info
    gradients = _splash_attention_bwd(**kernel.kwargs, res=saved, do=d_averages)
    return gradients[3:6]
