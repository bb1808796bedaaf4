"""The steps of which a folder has checkpoints."""

import os
from pathlib import Path

from ..named._format import format_value


_DAMAGED = "damaged-"
_SHOWN = 10


def list_steps(folder: str | os.PathLike[str]) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, in order.

    A checkpoint that is being written, or was when the program ended, is not in the list. Folders without files of a
    checkpoint, or with another name than that of a step, are not either.

    Args:
        folder: The folder of the checkpoints; it need not exist.

    Returns:
        The steps, the newest last.

    Raises:
        TypeError: If `folder` is no path.
        NotADirectoryError: If it is a file.

    Example:
        >>> import axonym as nym
        >>> nym.checkpoint.list_steps("runs/new")
        []
    """
    check_is_path(folder, "`list_steps(folder)`")
    path = Path(folder)
    if path.is_file():
        raise NotADirectoryError(f"{path} is a file; pass the folder of the checkpoints")
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    steps = [int(name) for name in names if name.isascii() and name.isdigit() and name == str(int(name))]
    return sorted(step for step in steps if get_step_folder(path, step).is_dir())


def get_step_folder(folder: Path, step: int) -> Path:
    """Returns the folder of the files of a step."""
    return folder / str(step) / "default"


def find_steps(folder: Path, step: int | None) -> list[int]:
    """Returns the step to restore, or all steps if it is None, newest first.

    Raises:
        ValueError: If the step is no integer from 0 on.
        FileNotFoundError: If there is no checkpoint of it.
    """
    if step is not None:
        check_step(step)
    steps = list_steps(folder)
    if not steps:
        one = f"; it is that of a step: pass {folder.parent} and `step={folder.name}`"
        raise FileNotFoundError(f"no checkpoint in {folder}{one if (folder / 'default').is_dir() else ''}")
    if step is None:
        return steps[::-1]
    if step not in steps:
        raise FileNotFoundError(
            f"no checkpoint of step {format_value(step)} in {folder}, only of {format_steps(steps)}"
        )
    return [one for one in steps[::-1] if one <= step]


def format_steps(steps: list[int]) -> str:
    """Writes the newest of some steps."""
    more = f"{len(steps) - _SHOWN} older ones, " if len(steps) > _SHOWN else ""
    return more + ", ".join(map(str, steps[-_SHOWN:]))


def check_is_path(folder: object, order: str) -> None:
    """Checks that a folder is a path and not another argument, with the order of the arguments in the error."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"`folder` is a path, not a {type(folder).__name__}; the order of arguments is {order}")


def check_step(step: object) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        remedy = "; convert it with `int(step)`" if hasattr(step, "__index__") and not isinstance(step, int) else ""
        raise ValueError(f"`step` is an integer from 0 on, not {format_value(step)}{remedy}")


def move_damaged(folder: Path, step: int) -> Path:
    """Moves the checkpoint of a step out of the way of those to come; returns where to."""
    number, target = 0, folder / f"{_DAMAGED}{step}"
    while target.exists():
        number += 1
        target = folder / f"{_DAMAGED}{step}-{number}"
    return (folder / str(step)).rename(target)
