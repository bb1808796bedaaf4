"""`read_hardware`: devices of your own from a file of their figures."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..._ground.formats import format_value, suggest_name
from ._hardware import Hardware, get_hardware, register_hardware


_BASE = "base"
_EXAMPLES = {
    ".toml": '[h100_ethernet]\nbase = "h100"\nnetwork_bandwidth = 12.5e9',
    ".json": '{"h100_ethernet": {"base": "h100", "network_bandwidth": 12.5e9}}',
}
_KINDS = {bool: "true or false", float: "a number", int: "a whole number", str: "a text"}


def read_hardware(path: str | os.PathLike[str]) -> tuple[Hardware, ...]:
    """Returns the devices that a file describes, and makes their names known as `register_hardware` does.

    The file is TOML or JSON. It has a table for each device by its name, with the fields of
    [`Hardware`][axonym.planner.Hardware] in bytes, operations and cycles a second. With `base`, the name of another
    device, the others are those of that one:

        [h100_ethernet]
        base = "h100"
        network_bandwidth = 12.5e9

    Args:
        path: The file, whose name ends in `.toml` or `.json`.

    Raises:
        FileNotFoundError: If there is no such file.
        TypeError: If a figure is of another type.
        ValueError: If the file is of another kind or is damaged, a field is unknown or missing, a `base` is not known,
            or the device cannot be registered.

    Example:
        >>> import axonym as nym, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "machines.json")
        ...     _ = path.write_text('{"h100_ethernet": {"base": "h100", "network_bandwidth": 12.5e9}}')
        ...     [device] = nym.planner.read_hardware(path)
        >>> device.network_bandwidth, str(nym.planner.described_devices("h100_ethernet:4x8")[0].topology)
        (12500000000.0, 'h100_ethernet:4x8')
    """
    devices: list[Hardware] = []
    for name, fields in _read_tables(Path(path)).items():
        devices.append(_make_hardware(f"{name!r} in {os.fspath(path)!r}", {**fields, "name": name}))
        register_hardware(devices[-1])  # before the next one, whose base it may be
    return tuple(devices)


def _read_tables(path: Path) -> dict[str, dict[str, Any]]:
    import tomllib  # which most programs do not need

    kind = path.suffix.lower()
    if kind not in _EXAMPLES:
        raise ValueError(f"a file of hardware ends in .toml or .json, which says its format; the path is {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text) if kind == ".toml" else json.loads(text)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file of hardware {str(path)!r}") from None
    except (ValueError, RecursionError) as error:  # of TOML, JSON or UTF-8
        raise ValueError(f"{str(path)!r} cannot be read as {kind[1:].upper()}: {error}") from None
    if not isinstance(tables, dict) or not tables or not all(isinstance(fields, dict) for fields in tables.values()):
        raise ValueError(f"{str(path)!r} does not have a table for each device by its name, such as\n{_EXAMPLES[kind]}")
    return tables


def _make_hardware(where: str, fields: dict[str, Any]) -> Hardware:
    """Returns the device with these fields, and those of its base."""
    base = None
    if _BASE in fields:
        try:
            base = get_hardware(fields.pop(_BASE))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the base of {where} is not known: {error}") from None
        base = dataclasses.replace(base, aliases=())  # names of the base itself
    return make_checked(Hardware, where, fields, base)


def make_checked(kind: type[Any], where: str, fields: Any, base: Any = None) -> Any:
    """Returns an object of a dataclass with checked fields; those that are not given are of `base` or the defaults.

    Raises:
        TypeError: If a field, or all of them, are of another type.
        ValueError: If a field is unknown or missing, or is none of those that its type lists.
    """
    if not isinstance(fields, dict):
        raise TypeError(f"{where} is a table of the fields of `{kind.__name__}`, not {format_value(fields)}")
    hints, figures = get_type_hints(kind), {}
    for name, value in fields.items():
        if name not in hints:
            fields_of_kind = ", ".join(hint for hint in hints if hint != "name")  # which the table is called by
            suggestion = suggest_name(name, [*hints]) or f"; there are {fields_of_kind}"
            raise ValueError(f"{where} has a field {name!r} that there is not{suggestion}")
        field_base = getattr(base, name, None)
        figures[name] = _check_field(hints[name], f"{name!r} of {where}", value, field_base)
    if base is not None:
        return dataclasses.replace(base, **figures)
    required = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    if missing := [name for name in required if name not in fields]:
        hint = f"; give them, or a `{_BASE}` that has them" if kind is Hardware else ""
        raise ValueError(f"{where} lacks {', '.join(missing)}{hint}")
    return kind(**figures)


def fits_float(value: float) -> bool:
    """Returns whether a number is neither infinite nor larger than any float, as an integer of JSON may be."""
    return abs(value) <= sys.float_info.max


def _check_field(hint: Any, where: str, value: Any, base: Any) -> Any:
    """Returns the value of a field as its type has it."""
    if get_origin(hint) is UnionType:
        hint = get_args(hint)[0]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return make_checked(hint, where, value, base)
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if not isinstance(value, list) or (... not in kinds and len(value) != len(kinds)):
            length = "" if ... in kinds else f" of length {len(kinds)}"
            raise TypeError(f"{where} is a list{length}, not {format_value(value)}")
        return tuple(_check_field(kinds[0], where, part, None) for part in value)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{where} is one of {', '.join(map(repr, get_args(hint)))}, not {format_value(value)}")
        return value
    is_valid = isinstance(value, hint)
    if hint in (int, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_valid = is_number and fits_float(value) and (hint is float or value == int(value))
    if not is_valid:
        raise TypeError(f"{where} is {_KINDS[hint]}, not {format_value(value)}")
    return hint(value)
