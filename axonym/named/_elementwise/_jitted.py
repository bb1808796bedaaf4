"""Compiled versions of `jax.numpy` functions that it does not compile itself, so that a call is dispatched in C++.

They are inlined in traces.
"""

import jax.numpy as jnp

from .._broadcasting import jit_inline


add = jit_inline(jnp.add)
bitwise_and = jit_inline(jnp.bitwise_and)
bitwise_or = jit_inline(jnp.bitwise_or)
bitwise_xor = jit_inline(jnp.bitwise_xor)
isneginf = jit_inline(jnp.isneginf)
isposinf = jit_inline(jnp.isposinf)
logaddexp = jit_inline(jnp.logaddexp)
logaddexp2 = jit_inline(jnp.logaddexp2)
logical_and = jit_inline(jnp.logical_and)
logical_or = jit_inline(jnp.logical_or)
logical_xor = jit_inline(jnp.logical_xor)
maximum = jit_inline(jnp.maximum)
minimum = jit_inline(jnp.minimum)
multiply = jit_inline(jnp.multiply)
negative = jit_inline(jnp.negative)
subtract = jit_inline(jnp.subtract)
