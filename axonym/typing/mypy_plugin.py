"""The plugin with which mypy reads `Named["batch embed"]` as `NamedArray`.

Enable it with the setting `plugins = ["axonym.typing.mypy_plugin"]`.
"""

from collections.abc import Callable

from mypy.plugin import AnalyzeTypeContext, Plugin
from mypy.types import Type


NAMED_ARRAY = "axonym.named._array.NamedArray"


class AxonymPlugin(Plugin):
    """Reads the subscript of `Named` as axes instead of a type."""

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """Returns the hook for the type with this name, None for other types."""
        return (lambda context: context.api.named_type(NAMED_ARRAY, [])) if fullname == NAMED_ARRAY else None


def plugin(version: str) -> type[Plugin]:
    """Returns the plugin class; mypy calls this function."""
    return AxonymPlugin
