"""Records what Haliax returns for the expressions of `tests/haliax`: `python tools/record_haliax.py` in `.venv-bench`.

It evaluates the expressions in `tests/haliax/recorded.json`, and those of the table of `docs/from-haliax.md`, with
Haliax itself, and writes the results to that file. It writes the names of the parameters of Haliax's public functions,
classes and methods to `parameters.json` next to it; record them with the nightly build, `marin-haliax`.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "haliax"))

from expressions import describe, list_documented, list_parameters, make_names  # noqa: E402


def main() -> None:
    """Evaluates all expressions with Haliax and writes what they return, and the names of parameters."""
    warnings.simplefilter("ignore")
    import haliax

    file = ROOT / "tests" / "haliax" / "recorded.json"
    expressions = [*json.loads(file.read_text()), *(row[0] for row in list_documented())]
    names = make_names(haliax)
    recorded = {one: describe(eval(one, names)) for one in dict.fromkeys(expressions)}
    write_lines(file, recorded)
    write_lines(file.with_name("parameters.json"), list_parameters("haliax"))


def write_lines(file: Path, values: dict[str, Any]) -> None:
    """Writes a dict as JSON with a line for each item."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    file.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
