"""The names that the expressions of `recorded.json` use, and a description of results that JSON can hold."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


PAGE = Path(__file__).parents[2] / "docs" / "from-haliax.md"


def make_names(hax: Any) -> dict[str, Any]:
    """Returns the names that the page defines for its expressions, in Haliax or in a module with the same names."""
    names = {"hax": hax, "jax": jax, "jnp": jnp, "np": np, "dataclasses": dataclasses}
    block = re.search(r"^A, B, C, D = (?:.*\n)*?(?=```)", PAGE.read_text(), re.MULTILINE)
    assert block is not None
    exec(block.group(), names)
    return names


def describe(result: Any) -> Any:
    """Returns the axes and the values of an array, the values of an unnamed array, or the text of anything else."""
    if hasattr(result, "array"):
        return [[f"{axis.name}: {axis.size}" for axis in result.axes], describe(result.array)]
    if isinstance(result, jax.Array | np.ndarray):
        values = np.asarray(result.astype(complex) if jnp.issubdtype(result.dtype, jnp.inexact) else result)
        parts = np.stack([values.real, values.imag], -1).round(3) if np.iscomplexobj(values) else values
        return [str(result.dtype), parts.ravel()[:60].tolist()]
    return repr(result)


def list_documented() -> list[tuple[str, str, str]]:
    """Returns the rows of the table of values and orders: the expression, and its results in Haliax and in Axonym."""
    table = PAGE.read_text().partition("| expression |")[2].partition("\n\n")[0]
    return [tuple(row) for row in re.findall(r"^\| `(.*)` \| `(.*)` \| `(.*)` \|$", table, re.MULTILINE)]
