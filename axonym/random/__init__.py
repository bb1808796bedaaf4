"""Random named arrays: what `jax.random` draws for the same key and sizes, with names, sharded as the mapping says."""

from ._sample import (
    bernoulli as bernoulli,
    categorical as categorical,
    normal as normal,
    split as split,
    truncated_normal as truncated_normal,
    uniform as uniform,
)
