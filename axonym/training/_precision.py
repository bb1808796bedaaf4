"""Element types of parameters, computing, reductions and optimizer state, by axis or path: `Precision`.

A `Policy` holds it for the layers, which ask by the names of a parameter. Trees are converted by names and paths.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.tree_util import keystr

from .._ground.errors import make_error
from .._ground.formats import format_value
from .._ground.similar_names import is_typo
from ..partitioning._leaves import describe_leaves, get_array_shape
from ..partitioning._mapping import check_name, warn_once


T = TypeVar("T")

ElementTypes: TypeAlias = Any
"""An element type, or a mapping from names of axes, compiled patterns of paths and `...` to element types and None."""

_MOST_PATHS = 20  # that an error lists


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Precision:
    """In which element types parameters are stored, layers compute, gradients are added up, and optimizers keep state.

    Each of these is an element type, None for that which arrays have, or a mapping to element types and None from
    names of axes, from compiled regular expressions, which are searched for in paths such as `blocks/stacked/mlp/up`,
    and from `...`, which stands for all arrays. The first entry that fits an array applies to it; without one, the
    array stays as it is. So `{"vocab": None, re.compile("norm"): "float32", ...: "bfloat16"}` converts all but tables.

    Only floating-point arrays of 16 bits and more are converted, and no modules such as `OverwriteWithGradient`, whose
    arrays are state and no parameters.

    Args:
        parameters: What `cast_parameters` converts to.
        computing: What `cast_computing` converts to and, where a `Policy` has this precision, what layers convert
            parameters to before they gather them, by names of axes alone. Gradients come back in the
            stored type.
        reductions: In which type the gradients of the parameters that layers gather under `fsdp` are added up over
            devices, by names of axes alone; that of computing by default. It needs a mesh of Explicit axes.
        optimizer: What `cast_optimizer` converts to.

    Raises:
        TypeError: If a key is no text, compiled regular expression or `...`.
        ValueError: If something else than a floating-point type of 16 bits or more is given.

    Example:
        >>> import axonym as nym
        >>> precision = nym.Precision(parameters="bfloat16", computing={"vocab": None, ...: "bfloat16"})
        >>> precision
        Precision(parameters='bfloat16', computing={'vocab': None, ...: 'bfloat16'})
        >>> table, scale = precision.cast_computing((nym.ones({"vocab": 4, "embed": 2}), nym.ones({"embed": 2})))
        >>> table.dtype, scale.dtype
        (dtype('float32'), dtype(bfloat16))
    """

    parameters: ElementTypes = None
    computing: ElementTypes = None
    reductions: ElementTypes = None
    optimizer: ElementTypes = None

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            types = _parse_element_types(option.name, getattr(self, option.name))
            object.__setattr__(self, option.name, types)  # the dataclass is frozen

    def cast_parameters(self, tree: T) -> T:
        """Returns a tree with arrays in the element types of `parameters`.

        Args:
            tree: Any tree of named arrays, plain arrays and `jax.ShapeDtypeStruct`s.

        Raises:
            ValueError: If a pattern of paths matches no floating-point array.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> layer = nym.nn.Linear.init(*nym.make_axes(embed=4, mlp=8), key=jax.random.key(0))
            >>> layer = nym.Precision(parameters={"embed": "bfloat16"}).cast_parameters(layer)
            >>> layer.weight.dtype, layer.bias.dtype
            (dtype(bfloat16), dtype('float32'))
        """
        return _cast_tree("parameters", self.parameters, tree)

    def cast_computing(self, tree: T) -> T:
        """Returns a tree, such as a model and a batch, with arrays in the element types of `computing`.

        The gradient of a conversion is a conversion, so that gradients come back in the types of the tree.

        Args:
            tree: Any tree of named arrays, plain arrays and `jax.ShapeDtypeStruct`s.

        Raises:
            ValueError: If a pattern of paths matches no floating-point array.

        Example:
            >>> import axonym as nym
            >>> nym.Precision(computing="bfloat16").cast_computing(nym.ones({"batch": 2})).dtype
            dtype(bfloat16)
        """
        return _cast_tree("computing", self.computing, tree)

    def cast_optimizer(self, state: T) -> T:
        """Returns the state of an optimizer with arrays in the element types of `optimizer`.

        An update in fewer bits than those of gradients returns state in their type, so convert what it returns, too.

        Args:
            state: Any tree of named arrays, plain arrays and `jax.ShapeDtypeStruct`s.

        Raises:
            ValueError: If a pattern of paths matches no floating-point array.

        Example:
            >>> import re
            >>> import axonym as nym
            >>> import optax
            >>> precision = nym.Precision(optimizer={re.compile("mu"): "bfloat16"})
            >>> state = precision.cast_optimizer(optax.adam(1e-3).init(nym.ones({"embed": 2})))
            >>> state[0].mu.dtype, state[0].nu.dtype
            (dtype(bfloat16), dtype('float32'))
        """
        return _cast_tree("optimizer", self.optimizer, state)

    def find_gather_dtypes(self, names: Sequence[str], dtype: Any) -> tuple[Any, Any]:
        """Returns in which types a parameter is gathered, and its gradient added up, from its names and type."""
        if not _is_converted(dtype):
            return dtype, dtype
        computing = _find_element_type(self.computing, names) or dtype
        return jnp.dtype(computing), jnp.dtype(_find_element_type(self.reductions, names) or computing)

    def __repr__(self) -> str:
        options = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        texts = [f"{name}={_format_element_types(types)}" for name, types in options.items() if types is not None]
        return f"Precision({', '.join(texts)})"


def _parse_element_types(option: str, types: Any) -> Any:
    """Returns the name of an element type, pairs of keys and such names, or None."""
    if isinstance(types, Mapping):
        types = tuple(types.items())
    if not isinstance(types, tuple):
        return _parse_element_type(option, types)
    for key, _ in types:
        if not isinstance(key, re.Pattern | EllipsisType):
            check_name(key)
    return tuple((key, _parse_element_type(option, dtype)) for key, dtype in types)


def parse_dtype(dtype: Any) -> Any:
    """Returns an element type, None if it is none."""
    try:
        return jnp.dtype(dtype)
    except (TypeError, ValueError):
        return None


def _parse_element_type(option: str, dtype: Any) -> str | None:
    if dtype is None:
        return None
    parsed = parse_dtype(dtype)
    if parsed is None or not _is_converted(parsed):
        raise make_error(
            ValueError,
            f"`{option}` of a `Precision` is a floating-point type of 16 bits or more, such as 'bfloat16', or a "
            "mapping from names of axes, compiled patterns of paths and `...` to these and None, not "
            f"{format_value(dtype)}.",
        )
    return parsed.name


def _is_converted(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1


def _format_element_types(types: Any) -> str:
    if not isinstance(types, tuple):
        return repr(types)
    texts = [f"{'...' if key is ... else repr(key)}: {dtype!r}" for key, dtype in types]
    return f"{{{', '.join(texts)}}}"


def _find_element_type(types: Any, names: Sequence[str], path: str = "") -> str | None:
    """Returns the element type of the first entry that fits an array; None to leave it as it is."""
    if not isinstance(types, tuple):
        return types
    return next((dtype for key, dtype in types if _fits(key, names, path)), None)


def _fits(key: Any, names: Sequence[str], path: str) -> bool:
    if isinstance(key, re.Pattern):
        return key.search(path) is not None
    return key is ... or key in names


def _cast_tree(option: str, types: Any, tree: Any) -> Any:
    if types is None:
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    is_state = [
        holds_state
        for node in jax.tree.leaves(tree, is_leaf=_holds_state)
        for holds_state in [_holds_state(node)] * len(jax.tree.leaves(node))
    ]
    arrays: dict[int, tuple[Any, str]] = {}  # names and path
    for i, (leaf, leaf_info) in enumerate(zip(leaves, describe_leaves(tree), strict=True)):
        sizes = get_array_shape(leaf)
        if sizes is not None and not is_state[i] and _is_converted(leaf.dtype):
            arrays[i] = leaf_info.names_of(sizes) or (), keystr(leaf_info.path, simple=True, separator="/")
    if isinstance(types, tuple):
        _check_keys(option, types, list(arrays.values()))
    for i, (names, path) in arrays.items():
        dtype = _find_element_type(types, names, path)
        if dtype is not None and leaves[i].dtype != dtype:
            leaves[i] = _cast_array(leaves[i], jnp.dtype(dtype))
    return jax.tree.unflatten(treedef, leaves)


def _holds_state(x: Any) -> bool:
    """Returns whether gradients carry the next state of a module; see `OverwriteWithGradient`."""
    return callable(getattr(type(x), "overwrite", None))


def _cast_array(array: Any, dtype: Any) -> Any:
    return array.update(dtype=dtype) if isinstance(array, jax.ShapeDtypeStruct) else array.astype(dtype)


def _check_keys(option: str, types: tuple[Any, ...], arrays: list[tuple[Any, str]]) -> None:
    """Raises an error of patterns that match nothing, and warns of names that look mistyped."""
    known_names = {name for names, _ in arrays for name in names}
    paths = [path for _, path in arrays]
    for key, _ in types:
        if isinstance(key, re.Pattern) and not any(map(key.search, paths)):
            more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
            raise ValueError(
                f"pattern {key.pattern!r} in `{option}` of a `Precision` matches no floating-point array; their paths "
                f"are {', '.join(paths[:_MOST_PATHS])}{more}"
            )
        if isinstance(key, str) and key not in known_names:
            similar = [name for name in sorted(known_names) if is_typo(key, name)]
            if similar:
                warn_once(f"`{option}` has axis {key!r}, and the arrays have {similar[0]!r}; correct the name")
