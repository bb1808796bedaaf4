"""Functions that `jax.numpy` calls through Python, compiled here as the others are there: a call of them is one in C++.

They do the same, and leave nothing of themselves in what is traced.
"""

import jax.numpy as jnp

from .._align import compiled


add = compiled(jnp.add)
bitwise_and = compiled(jnp.bitwise_and)
bitwise_or = compiled(jnp.bitwise_or)
bitwise_xor = compiled(jnp.bitwise_xor)
isneginf = compiled(jnp.isneginf)
isposinf = compiled(jnp.isposinf)
logaddexp = compiled(jnp.logaddexp)
logaddexp2 = compiled(jnp.logaddexp2)
logical_and = compiled(jnp.logical_and)
logical_or = compiled(jnp.logical_or)
logical_xor = compiled(jnp.logical_xor)
maximum = compiled(jnp.maximum)
minimum = compiled(jnp.minimum)
multiply = compiled(jnp.multiply)
negative = compiled(jnp.negative)
subtract = compiled(jnp.subtract)
