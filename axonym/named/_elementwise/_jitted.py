"""Compiled versions of `jax.numpy` functions whose calls run Python, so that a call is dispatched in C++.

They are inlined in traces.
"""

import jax.numpy as jnp

from ..._ground.caches import jit_inline
from ..._ground.jax_compat import get_compiled_ufunc


add = get_compiled_ufunc(jnp.add)
bitwise_and = get_compiled_ufunc(jnp.bitwise_and)
bitwise_or = get_compiled_ufunc(jnp.bitwise_or)
bitwise_xor = get_compiled_ufunc(jnp.bitwise_xor)
isneginf = jit_inline(jnp.isneginf)
isposinf = jit_inline(jnp.isposinf)
logaddexp = get_compiled_ufunc(jnp.logaddexp)
logaddexp2 = get_compiled_ufunc(jnp.logaddexp2)
logical_and = get_compiled_ufunc(jnp.logical_and)
logical_or = get_compiled_ufunc(jnp.logical_or)
logical_xor = get_compiled_ufunc(jnp.logical_xor)
maximum = get_compiled_ufunc(jnp.maximum)
minimum = get_compiled_ufunc(jnp.minimum)
multiply = get_compiled_ufunc(jnp.multiply)
negative = get_compiled_ufunc(jnp.negative)
subtract = get_compiled_ufunc(jnp.subtract)
