"""What is compiled: a decoder's equations and instructions, the bytes that it moves and holds, and the time of a step.

Programs take and return flat lists of plain arrays, so that only what the compiler was given differs.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from tests.hlo import Program

from .decoder import Form, Sizes, check_agreement, forms, gathering
from .measure import Effort, Row, row, timed
from .models import MODELS, Model, make_forms


DEVICES = 1
AGAINST = "the decoder by hand"
BAR = 1.0
BIG = Sizes(layers=4, embed=256, pos=128, batch=4, vocab=1024)


def equations(jaxpr: Any) -> list[Any]:
    """Returns the equations of a jaxpr, those of the functions that it calls included."""
    found = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            found += equations(inner) if _is_jaxpr(inner) else []
    return found


def _is_jaxpr(x: Any) -> bool:
    return hasattr(x, "eqns")


def passes(form: Form) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Returns the loss, and the loss with its gradient, each as a function of plain arrays and with these."""
    loss, arguments = form.flat()
    return {"forward": (loss, arguments), "gradient": (jax.value_and_grad(loss), arguments)}


def counts(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, float]:
    """Returns what can be counted of a function: in its jaxpr, and in the program compiled for it."""
    traced = jax.jit(fn).trace(*arguments)
    compiled = traced.lower().compile()
    cost: Any = compiled.cost_analysis()
    memory: Any = compiled.memory_analysis()
    return {
        "equations": len(equations(traced.jaxpr)),
        "instructions": len(Program(compiled.as_text() or "").instructions),
        "floating-point operations": cost["flops"],
        "bytes accessed": cost["bytes accessed"],
        "temporary bytes": memory.temp_size_in_bytes,
    }


def rows(effort: Effort) -> Iterator[Row]:
    small = Sizes(layers=2) if effort.smoke else Sizes()
    big = dataclasses.replace(BIG, layers=2, embed=64) if effort.smoke else BIG
    for how in ("unrolled", "scanned"):
        scanned = how == "scanned"
        yield from _counted(forms(small, scanned=scanned) | gathering(small, scanned=scanned), how)
        yield from _stepped(forms(big, scanned=scanned) | gathering(big, scanned=scanned), how, effort)
    for name, model in MODELS.items():
        yield from _count_model(name, model)


def _count_model(name: str, model: Model) -> Iterator[Row]:
    """Yields the bytes that an example's model moves and holds."""
    found = make_forms(model)
    check_agreement(found)
    for which in ("forward", "gradient"):
        counted = {who: counts(*passes(form)[which]) for who, form in found.items()}
        for unit in ("bytes accessed", "temporary bytes"):
            samples = {who: [of[unit]] for who, of in counted.items()}
            yield row(f"{unit}, {which}, {name}", unit, f"{name} by hand", 1.02, samples)


def _counted(found: dict[str, Form], how: str) -> Iterator[Row]:
    check_agreement(found)
    for which in ("forward", "gradient"):
        counted = {who: counts(*passes(form)[which]) for who, form in found.items()}
        for unit in counted["JAX"]:
            samples = {who: [of[unit]] for who, of in counted.items()}
            yield row(f"{unit}, {which}, {how}", unit, AGAINST, BAR, samples)


def _stepped(found: dict[str, Form], how: str, effort: Effort) -> Iterator[Row]:
    check_agreement(found)
    few = effort if effort.smoke else dataclasses.replace(effort, rounds=11)
    for which in ("forward", "gradient"):
        calls = {who: _compiled(*passes(form)[which]) for who, form in found.items()}
        yield timed(f"compiled step, {which}, {how}", AGAINST, 1.02, calls, few, unit="ms")


def _compiled(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    compiled = jax.jit(fn).lower(*arguments).compile()
    return lambda: jax.block_until_ready(compiled(*arguments))
