"""Records what Haliax returns for the expressions of `tests/haliax`: `python tools/record_haliax.py` in `.venv-bench`.

It evaluates the expressions in `tests/haliax/recorded.json`, and those of the table of `docs/from-haliax.md`, with
Haliax itself, and writes the results to that file.
"""

import json
import sys
import warnings
from pathlib import Path


ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "haliax"))

from expressions import describe, list_documented, make_names  # noqa: E402


def main() -> None:
    """Evaluates all expressions with Haliax and writes what they return."""
    warnings.simplefilter("ignore")
    import haliax

    file = ROOT / "tests" / "haliax" / "recorded.json"
    expressions = [*json.loads(file.read_text()), *(row[0] for row in list_documented())]
    names = make_names(haliax)
    recorded = {one: describe(eval(one, names)) for one in dict.fromkeys(expressions)}
    lines = ",\n".join(f"{json.dumps(one)}: {json.dumps(value)}" for one, value in recorded.items())
    file.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
