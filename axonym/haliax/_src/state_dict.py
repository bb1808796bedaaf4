"""`haliax._src.state_dict`: the names of `haliax.state_dict`."""

from ..state_dict import (
    ModuleWithStateDictSerialization as ModuleWithStateDictSerialization,
    StateDict as StateDict,
    default_eqx_module_from_state_dict as default_eqx_module_from_state_dict,
    default_eqx_module_to_state_dict as default_eqx_module_to_state_dict,
    flatten_modules_for_export as flatten_modules_for_export,
    from_state_dict as from_state_dict,
    from_torch_compatible_state_dict as from_torch_compatible_state_dict,
    load_state_dict as load_state_dict,
    save_state_dict as save_state_dict,
    to_numpy_state_dict as to_numpy_state_dict,
    to_state_dict as to_state_dict,
    to_torch_compatible_state_dict as to_torch_compatible_state_dict,
    unflatten_modules_from_export as unflatten_modules_from_export,
    with_prefix as with_prefix,
)
