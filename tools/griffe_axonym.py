"""What Griffe has to be told of this package before mkdocstrings can show it."""

import copy
import re
from typing import Any

import griffe


EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class Axonym(griffe.Extension):
    """Shows examples as code, and the methods that are functions by another name."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Renames the section `Example:`, of which Griffe knows only the plural."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Makes methods of the assignments in a class: `sum = _sum.sum`."""
        for cls in classes(pkg):
            for name, member in list(cls.attributes.items()):
                if function := assigned_function(cls, member, loader):
                    cls.set_member(name, as_method(function, cls, name))


def classes(module: griffe.Module) -> list[griffe.Class]:
    """Returns the classes of a module and of the modules in it."""
    own = [cls for cls in module.classes.values() if not cls.is_alias]
    return own + [cls for inner in module.modules.values() for cls in classes(inner)]


def assigned_function(
    cls: griffe.Class, member: griffe.Attribute, loader: griffe.GriffeLoader
) -> griffe.Function | None:
    """Returns the function of this package that is the value of a class attribute, if one is."""
    first, *rest = str(member.value).split(".")
    try:
        value = loader.modules_collection[".".join([cls.module.resolve(first), *rest])]
    except (KeyError, griffe.NameResolutionError):
        return None
    value = value.final_target if value.is_alias else value
    return value if value.is_function else None


def as_method(function: griffe.Function, cls: griffe.Class, name: str) -> griffe.Function:
    """Returns the function as a member of the class, which says its first sentence and no more."""
    method = copy.copy(function)
    method.name, method.parent = name, cls
    method.parameters = griffe.Parameters(*list(function.parameters)[1:])
    if function.docstring:
        sentence = function.docstring.value.split("\n\n")[0]
        link = f"[`{cls.package.name}.{function.name}`][{function.path}]"
        method.docstring = copy.copy(function.docstring)
        method.docstring.value = f"{sentence}\n\nThe function {link} of this array."
        method.docstring.parent = method
    return method
