"""`haliax.nn.activations`: elementwise functions, with Haliax's names for their arguments."""

from typing import Any

from ... import nn
from .._adapt import adapt_all


FUNCTIONS = adapt_all(
    nn,
    {
        "": "glu quick_gelu relu_squared",
        "a=x": """
            celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid relu relu6 selu sigmoid
            silu soft_sign softplus swish
            """,
    },
)
globals().update(FUNCTIONS)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
