"""`haliax.nn.activations`: elementwise functions, with Haliax's names for their arguments."""

from ... import nn
from .._functions import adapt


celu = adapt(nn.celu, "a=x")
elu = adapt(nn.elu, "a=x")
gelu = adapt(nn.gelu, "a=x")
glu = adapt(nn.glu)
hard_sigmoid = adapt(nn.hard_sigmoid, "a=x")
hard_silu = adapt(nn.hard_silu, "a=x")
hard_swish = adapt(nn.hard_swish, "a=x")
hard_tanh = adapt(nn.hard_tanh, "a=x")
leaky_relu = adapt(nn.leaky_relu, "a=x")
log_sigmoid = adapt(nn.log_sigmoid, "a=x")
quick_gelu = adapt(nn.quick_gelu)
relu = adapt(nn.relu, "a=x")
relu6 = adapt(nn.relu6, "a=x")
relu_squared = adapt(nn.relu_squared)
selu = adapt(nn.selu, "a=x")
sigmoid = adapt(nn.sigmoid, "a=x")
silu = adapt(nn.silu, "a=x")
soft_sign = adapt(nn.soft_sign, "a=x")
softplus = adapt(nn.softplus, "a=x")
swish = adapt(nn.swish, "a=x")
