"""State dicts: the arrays of a tree as one dict with names such as `blocks.0.mlp.weight`, and back, as in PyTorch."""

from ._from_state_dict import from_state_dict as from_state_dict, read_fields as read_fields
from ._keys import add_prefix as add_prefix
from ._safetensors import load_safetensors as load_safetensors, save_safetensors as save_safetensors
from ._stack_state_dict import stack_state_dict as stack_state_dict, unstack_state_dict as unstack_state_dict
from ._to_state_dict import (
    flatten_modules as flatten_modules,
    from_torch_compatible_state_dict as from_torch_compatible_state_dict,
    to_numpy_state_dict as to_numpy_state_dict,
    to_state_dict as to_state_dict,
    to_torch_compatible_state_dict as to_torch_compatible_state_dict,
    unflatten_modules as unflatten_modules,
    write_fields as write_fields,
)
