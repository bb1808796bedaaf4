"""What tracing costs: a decoder of twelve layers, its forward pass, its gradient, and the lowering of both.

Every trace is of a function that JAX has not seen. What JAX and the libraries keep from one trace to the next is warm,
as it is in a program that traces more than one function.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from .decoder import Form, Sizes, check_agreement, forms
from .measure import Effort, Row, timed


DEVICES = 1
AGAINST = "the decoder by hand"
LOWER_BARS = {"unrolled": 1.1, "scanned": 1.0}


def rows(effort: Effort) -> Iterator[Row]:
    sizes = Sizes(layers=2) if effort.smoke else Sizes()
    some = effort if effort.smoke else dataclasses.replace(effort, rounds=21)
    few = effort if effort.smoke else dataclasses.replace(effort, rounds=11)
    for how in ("unrolled", "scanned"):
        found = forms(sizes, scanned=how == "scanned")
        check_agreement(found)
        for what, bar, run, rounds in (
            ("forward trace", 0.8, _forward, some),
            ("trace of value and gradient", None, _gradient, few),
            ("lowering of value and gradient", LOWER_BARS[how], _lowered, few),
        ):
            yield timed(f"{what}, {how}", AGAINST, bar, _calls(run, found), rounds, unit="ms")


def _forward(form: Form) -> Any:
    return jax.make_jaxpr(form.fresh())(form.parameters, *form.tokens)


def _gradient(form: Form) -> Any:
    return jax.make_jaxpr(jax.value_and_grad(form.fresh()))(form.parameters, *form.tokens)


def _lowered(form: Form) -> Any:
    return jax.jit(jax.value_and_grad(form.fresh())).lower(form.parameters, *form.tokens)


def _calls(run: Callable[[Form], Any], found: dict[str, Form]) -> dict[str, Callable[[], None]]:
    return {who: _call(run, form) for who, form in found.items()}


def _call(run: Callable[[Form], Any], form: Form) -> Callable[[], None]:
    def call() -> None:
        run(form)  # nothing to wait for

    return call
