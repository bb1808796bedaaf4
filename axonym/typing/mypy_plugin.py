"""The plugin that makes mypy read `Named["batch embed"]` as `NamedArray`.

The setting `plugins = ["axonym.typing.mypy_plugin"]` turns it on.
"""

from collections.abc import Callable

from mypy.plugin import AnalyzeTypeContext, Plugin
from mypy.types import Type


NAMED_ARRAY = "axonym.named._array.NamedArray"


class AxonymPlugin(Plugin):
    """Reads what stands in brackets behind `Named` as a description of axes, which is no type."""

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """Returns the reader of a type with this name, if it is ours."""
        return _named_array if fullname == NAMED_ARRAY else None


def _named_array(context: AnalyzeTypeContext) -> Type:
    return context.api.named_type(NAMED_ARRAY, [])


def plugin(version: str) -> type[Plugin]:
    """Returns the plugin, as mypy asks for it."""
    return AxonymPlugin
