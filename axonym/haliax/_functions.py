"""The functions of Axonym by Haliax's names, with its parameter names, and the few that differ in more than these."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .. import partitioning
from ..axis import AxisSelector
from ..named._axis import Axis
from ..named._index import dslice as NamedDslice
from ._array import convert_result


def adapt(
    fn: Callable[..., Any], spelling: str = "", convert: Callable[[Any], Any] = convert_result
) -> Callable[..., Any]:
    """Returns a function that accepts Haliax's names for its parameters and returns arrays of this package.

    Args:
        fn: The function.
        spelling: Pairs of Haliax's and Axonym's name of a parameter: `"a=x axis=axes"`.
        convert: What is applied to the result.

    Returns:
        Function of the same arguments; its signature shows Haliax's names, and it accepts both.
    """
    new_names = dict(pair.split("=") for pair in spelling.split())
    old_names = {new: old for old, new in new_names.items()}
    signature = inspect.signature(fn)
    parameters = [
        parameter.replace(name=old_names.get(parameter.name, parameter.name))
        for parameter in signature.parameters.values()
    ]

    @functools.wraps(fn)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        for name in new_names.keys() & kwargs.keys():
            kwargs[new_names[name]] = kwargs.pop(name)
        return convert(fn(*args, **kwargs))

    adapted.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return adapted


def rename_parameters(fn: Callable[..., Any], spelling: str) -> Callable[..., Any]:
    """Returns a function that accepts Haliax's names for its parameters and returns trees as they are."""
    return adapt(fn, spelling, lambda result: result)


def adapt_all(module: Any, table: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """Returns adapted functions of a module by name, from a table of spellings and the functions that have them."""
    return {name: adapt(getattr(module, name), spelling) for spelling, names in table.items() for name in names.split()}


axonym: Any = importlib.import_module(__name__.partition(".")[0])

# From the spelling of parameters, Haliax's before the "=" and Axonym's after it, to the functions that have it.
_SPELLINGS = {
    "": """
        arange bincount broadcast_arrays broadcast_arrays_and_return_axes concatenate
        fold full logspace geomspace make_axes map ones searchsorted stack zeros
        """,
    "a=x": """
        abs absolute angle arccos arccosh arcsin arcsinh arctan arctanh around bitwise_count bitwise_invert bitwise_not
        broadcast_to cbrt ceil conj conjugate copy cos cosh deg2rad degrees exp exp2 expm1 fabs fix floor frexp
        full_like i0 imag invert iscomplex isfinite isinf isnan isneginf isposinf isreal log log10 log1p log2
        logical_not nancumsum ndim negative ones_like packbits positive rad2deg radians real reciprocal
        repeat rint round rsqrt sign signbit sin sinc sinh sqrt square tan tanh trunc unpackbits zeros_like
        """,
    "a=x b=y": """
        add arctan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor divide divmod equal
        float_power floor_divide fmax fmin fmod greater greater_equal hypot isclose left_shift less less_equal logaddexp
        logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply nextafter not_equal power remainder
        right_shift subtract true_divide
        """,
    "array=x": """
        argmax argmin nanargmax nanargmin nonzero pad pad_left ravel roll slice trace unflatten_axis unique
        """,
    "array=x a_min=min a_max=max": "clip",
    "array=x new_axis_name=new_axis": "flatten",
    "arr=x": "top_k",
    "a=array axis=axes": "named",
    "idx=i": "dblock",
    "x=tree": "auto_sharded shard",
    "f=fn": "scan",
}
_REDUCTIONS = """
    all amax amin any max mean min nanmax nanmean nanmin nanprod nanstd nansum nanvar prod product ptp std sum var
    """


def _adapt_reduction(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a reduction that also reduces each named array of a tree, as Haliax's do."""

    @functools.wraps(fn)
    def reduce_tree(x: Any, axis: Any = None, **options: Any) -> Any:
        if isinstance(x, dict | list | tuple):
            return jax.tree.map(lambda leaf: fn(leaf, axis, **options), x, is_leaf=axonym.is_named_array)
        return fn(x, axis, **options)

    return adapt(reduce_tree, "array=x")


def _adapt_test(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a comparison of entire arrays that returns a plain scalar."""

    @functools.wraps(fn)
    def compare(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return result.array if axonym.is_named_array(result) else result

    return compare


def list_functions() -> dict[str, Callable[..., Any]]:
    """Returns the adapted functions by name."""
    reductions = {name: _adapt_reduction(getattr(axonym, name)) for name in _REDUCTIONS.split()}
    scalars = {name: _adapt_test(getattr(axonym, name)) for name in "allclose array_equal array_equiv".split()}
    return {**adapt_all(axonym, _SPELLINGS), **reductions, **scalars}


def linspace(axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, dtype: Any = None) -> Any:
    """Makes evenly spaced numbers; an axis given by name gets 50 of them.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.linspace("x", start=0.0, stop=1.0).shape
        {'x': 50}
    """
    axis = Axis(axis, 50) if isinstance(axis, str) else axis
    return axonym.linspace(axis, start=start, stop=stop, endpoint=endpoint, dtype=dtype)


def _call_unique(outputs: str, array: Any, Unique: Axis, axis: Any, fill_value: Any) -> Any:
    options = {f"return_{output}": True for output in outputs.split()}
    return axonym.unique(array, Unique, axis=axis, fill_value=fill_value, **options)


def unique_all(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements, their first positions, the inverse and the counts.

    Example:
        >>> import axonym.haliax as hax
        >>> [x.array.tolist() for x in hax.unique_all(hax.named([2, 1, 2], "i"), hax.Axis("u", 2))]
        [[1, 2], [1, 0], [1, 0, 1], [1, 2]]
    """
    return _call_unique("index inverse counts", array, Unique, axis, fill_value)


def unique_counts(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements and how often they occur.

    Example:
        >>> import axonym.haliax as hax
        >>> [x.array.tolist() for x in hax.unique_counts(hax.named([2, 1, 2], "i"), hax.Axis("u", 2))]
        [[1, 2], [1, 2]]
    """
    return _call_unique("counts", array, Unique, axis, fill_value)


def unique_inverse(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements and for each element its position among them.

    Example:
        >>> import axonym.haliax as hax
        >>> [x.array.tolist() for x in hax.unique_inverse(hax.named([2, 1, 2], "i"), hax.Axis("u", 2))]
        [[1, 2], [1, 0, 1]]
    """
    return _call_unique("inverse", array, Unique, axis, fill_value)


def unique_values(array: Any, Unique: Axis, *, axis: Any = None, fill_value: Any = None) -> Any:
    """Returns the unique elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.unique_values(hax.named([2, 1, 2], "i"), hax.Axis("u", 2)).array.tolist()
        [1, 2]
    """
    return _call_unique("", array, Unique, axis, fill_value)


def where(condition: Any, x: Any = None, y: Any = None, fill_value: Any = 0, new_axis: Axis | None = None) -> Any:
    """Chooses between elements, or returns the positions where a condition is True; see `axonym.where`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.where(hax.arange(hax.Axis("i", 3)) > 1, 1, 0).array.tolist()
        [0, 0, 1]
    """
    if new_axis is None:
        return axonym.where(condition, x, y)
    return axonym.where(condition, fill_value=0 if fill_value is None else fill_value, new_axis=new_axis)


def vmap(fn: Callable[..., Any], axis: Any, *, default: Any = None, args: Any = (), kwargs: Any = None) -> Any:
    """Vectorises a function over a named axis; see `axonym.vmap`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.vmap(lambda row: row.sum(), "batch")(hax.ones({"batch": 2, "embed": 3})).array
        Array([3., 3.], dtype=float32)
    """
    options = {} if default is None else {"default": default}
    return adapt(axonym.vmap(fn, axis, args=tuple(args), kwargs=kwargs, **options))


class dslice(NamedDslice):
    """A slice whose start may be traced and whose length is fixed; see `axonym.dslice`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.ds(1, hax.Axis("block", 2)).to_slice()
        slice(1, 3, None)
    """

    def __init__(self, start: Any, length: int | Axis) -> None:
        """Stores the start and the number of elements."""
        super().__init__(start, length.size if isinstance(length, Axis) else length)

    def to_slice(self) -> slice:
        """Returns the same as a Python slice."""
        return slice(self.start, self.start + self.length)

    @staticmethod
    def block(idx: Any, size: int) -> "dslice":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns block number `idx`.

        Example:
            >>> import axonym.haliax as hax
            >>> hax.dblock(1, 2).start
            2
        """
        return dslice(idx * size, size)


def axis_mapping(mapping: Any, *, merge: bool = False, **kwargs: Any) -> Any:
    """Activates a mapping; with `merge`, entries of the outer mapping win over those of this one.

    Example:
        >>> import axonym.haliax as hax
        >>> with (
        ...     hax.axis_mapping({"batch": "data"}),
        ...     hax.axis_mapping({"batch": "model", "embed": "model"}, merge=True),
        ... ):
        ...     hax.current_thread_local_mapping()
        {'batch': 'data', 'embed': 'model'}
    """
    outer = partitioning.current_mapping() if merge else None
    return partitioning.axis_mapping({**mapping, **(outer or {}), **kwargs})


def current_thread_local_mapping() -> dict[str, Any] | None:
    """Returns the active mapping as a dict, or None.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.current_thread_local_mapping() is None
        True
    """
    mapping = partitioning.current_mapping()
    return None if mapping is None else dict(mapping)


def shard_with_axis_mapping(x: Any, mapping: Any = None, mesh: Any = None) -> Any:
    """Shards the named arrays of a tree by a mapping, the active one by default; see `axonym.shard`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> mesh = jax.make_mesh((2,), ("data",))
        >>> hax.shard_with_axis_mapping(hax.ones({"batch": 2}), {"batch": "data"}, mesh).sharding.spec
        P('data',)
    """
    return axonym.shard(x, mapping, mesh)


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    mesh: Any = None,
    axis_mapping: Any = None,
    check_rep: bool = False,
    **shmap_kwargs: Any,
) -> Any:
    """Runs a function on each device, on its own shard of every named array; see `axonym.shard_map`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> double = hax.shard_map(lambda x: 2 * x, mesh=mesh, axis_mapping={"batch": "data"})
        >>> double(hax.ones({"batch": 4})).array
        Array([2., 2., 2., 2.], dtype=float32)
    """
    shmap_kwargs.setdefault("check_vma", check_rep)
    return partitioning.shard_map(
        f, mapping=axis_mapping, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **shmap_kwargs
    )
