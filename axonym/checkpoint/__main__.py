"""Prints what is in a checkpoint: `python -m axonym.checkpoint FOLDER [--step N]`."""

import argparse
import sys
from collections.abc import Sequence

from ._inspect import inspect
from ._steps import format_steps, list_steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tree of a checkpoint with axes, element types and bytes, and the steps that there are."""
    parser = argparse.ArgumentParser(prog="python -m axonym.checkpoint", description=(__doc__ or "").split(":")[0])
    parser.add_argument("folder", help="the folder of the checkpoints")
    parser.add_argument("--step", type=int, help="the step; the newest if left out")
    options = parser.parse_args(arguments)
    try:
        print(inspect(options.folder, options.step))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"steps in the folder: {format_steps(list_steps(options.folder))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
