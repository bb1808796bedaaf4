"""`named_call`: the names of functions and modules in compiled programs.

JAX stores the names of the scopes that are open where an operation is traced. A module does not know the field that
holds it. So while a module or a function is called, the modules within it, or within its arguments, are looked up by
identity to find their paths. `grad`, `scan` and `vmap` rebuild trees, so a path is known below the innermost call that
was given the rebuilt module; a module that no open call knows has the name of its class.
"""

import contextlib
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, overload

import jax

from .._ground.caches import cached_plan
from .._ground.errors import hide_library_frames
from .._ground.jax_compat import is_tracing
from ._axis import Axis
from ._base import NamedBase


P = ParamSpec("P")
R = TypeVar("R")

_INTERNAL = "axonym "  # what the names of axes begin with that users never see
_MAX_CHARACTERS = 120  # names of scopes are repeated for each operation of a program
_UNSAFE_CHARACTERS = re.compile(r"[^\w .+-]")


@overload
def named_call(fn: Callable[P, R], *, name: str | None = None) -> Callable[P, R]: ...
@overload
def named_call(fn: None = None, *, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def named_call(fn: Any = None, *, name: str | None = None) -> Any:
    """Names what a function or method computes, in jaxprs, HLO and profiles; see `jax.named_scope`. Also a decorator.

    A method of a module has the path of the field that holds the module, such as `blocks[0]/attention`, or the name of
    its class where that is not known; methods other than `__call__` add their own name. Any other function has its own
    name. Modules in the fields of the module, or in the arguments of the function, are named by their paths in turn.

    The layers of `axonym.nn` and functions compiled by `named_jit` name their modules without it. `jax.grad` and other
    transformations of JAX rebuild a model, so decorate the function that they differentiate, or the `__call__` of the
    model. A call outside of traced functions has no names.

    Args:
        fn: The function, or the method of a class.
        name: The name to use instead.

    Returns:
        The function with the same signature.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Embed, Mlp = nym.make_axes(embed=4, mlp=8)
        >>> model = {"up": nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), use_bias=False)}
        >>> @nym.named_call
        ... def compute_loss(model, x):
        ...     return model["up"](x).sum().scalar()
        >>> jaxpr = jax.make_jaxpr(jax.grad(compute_loss))(model, nym.ones(Embed))
        >>> "jvp(compute_loss)/up/dot(embed -> mlp)" in jaxpr.pretty_print(name_stack=True)
        True
    """
    if fn is None:
        return functools.partial(named_call, name=name)
    code = getattr(fn, "__code__", None)
    is_method = code is not None and code.co_argcount > 0 and code.co_varnames[0] == "self"
    function_name = getattr(fn, "__name__", type(fn).__name__)

    @functools.wraps(fn)
    def call_in_scope(*args: Any, **kwargs: Any) -> Any:
        try:
            if not is_tracing():
                return fn(*args, **kwargs)
            with find_scope(args, kwargs):
                return fn(*args, **kwargs)
        except Exception as error:
            hide_library_frames(error)
            raise

    def find_scope(args: tuple[Any, ...], kwargs: dict[str, Any]) -> contextlib.ExitStack:
        if not is_method:
            return enter_scope(function_name if name is None else name, None, (*args, *kwargs.values()))
        module = args[0]
        if name is not None:
            return enter_scope(name, module)
        path = find_module_name(module)
        if function_name != "__call__":
            path = f"{path}/{function_name}" if path else function_name
        return enter_scope(path, module)

    return call_in_scope


class _OpenCall:
    """A call in progress: the module that is called, and the trees in which modules have paths."""

    __slots__ = ("_paths", "_trees", "module")

    def __init__(self, module: Any, trees: tuple[Any, ...]) -> None:
        self.module, self._trees = module, trees
        self._paths: dict[int, str] | None = None  # by identity; filled when the first path is asked for

    def find_path(self, module: Any) -> str | None:
        """Returns the path of a module, which is empty for the module that is called, None if it is not known."""
        if module is self.module:
            return ""
        if self._paths is None:
            self._paths = {}
            for tree in (self.module, *self._trees):
                _add_module_paths(tree, "", self._paths)
        return self._paths.get(id(module)) or None


def _add_module_paths(tree: Any, path: str, paths: dict[int, str]) -> None:
    """Adds the path of each module of a tree by its identity; the first one if there are several."""
    for key, child in _iterate_children(tree, path):
        if _get_module_fields(type(child)) is None or paths.setdefault(id(child), key) == key:
            _add_module_paths(child, key, paths)


def _iterate_children(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the elements of a container, or the fields of a module, with their paths."""
    if isinstance(tree, list | tuple | dict):
        for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield f"{path}[{_clean_name(key)}]" if path else _clean_name(key), child
    else:
        for name in _get_module_fields(type(tree)) or ():
            yield f"{path}/{name}" if path else name, getattr(tree, name, None)


@cached_plan
def _get_module_fields(cls: type) -> tuple[str, ...] | None:
    """Returns the fields in which a class of modules holds others; None for other classes, arrays and axes included."""
    if not dataclasses.is_dataclass(cls) or issubclass(cls, NamedBase | Axis):
        return None
    return tuple(field.name for field in dataclasses.fields(cls) if not field.metadata.get("static", False))


class _OpenCalls(threading.local):
    """The calls in progress in one thread, innermost last."""

    def __init__(self) -> None:
        self.calls: list[_OpenCall] = []


_open_calls = _OpenCalls()


def find_module_name(module: Any) -> str:
    """Returns the path of a module below the innermost open call that holds it, the name of its class if none does.

    It is empty for a module whose call is open.
    """
    for call in reversed(_open_calls.calls):
        path = call.find_path(module)
        if path is not None:
            return path
    return type(module).__name__


def enter_scope(path: str, module: Any, trees: tuple[Any, ...] = ()) -> contextlib.ExitStack:
    """Opens a scope for each part of a path, and a call that gives modules their paths within `module` and `trees`."""
    stack = contextlib.ExitStack()
    for part in path.split("/") if path else ():
        stack.enter_context(jax.named_scope(part))
    _open_calls.calls.append(_OpenCall(module, trees))
    stack.callback(_open_calls.calls.pop)
    return stack


def enter_function_scope(
    function: str, axes: tuple[str, ...], new_axes: tuple[str, ...] = ()
) -> contextlib.AbstractContextManager[Any]:
    """Opens a scope for a function of named arrays while it is traced; see `format_scope`."""
    return jax.named_scope(format_scope(function, axes, new_axes)) if is_tracing() else contextlib.nullcontext()


def format_scope(function: str, axes: tuple[str, ...], new_axes: tuple[str, ...] = ()) -> str:
    """Formats a function and its axes as the name of a scope, such as `dot(embed -> heads, head_dim)`."""
    axes = tuple(axis for axis in axes if not str(axis).startswith(_INTERNAL))
    text = ", ".join(map(_clean_name, axes))
    if new_axes:
        text = f"{text} -> {', '.join(map(_clean_name, new_axes))}".lstrip()
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[: _MAX_CHARACTERS - 3]}..."
    return f"{function}({text})"


def _clean_name(name: Any) -> str:
    """Returns a name without the characters that separate scopes or that texts of programs quote."""
    return _UNSAFE_CHARACTERS.sub("_", str(name)[:_MAX_CHARACTERS])
