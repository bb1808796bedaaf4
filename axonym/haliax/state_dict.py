"""`haliax.state_dict`, which is not there yet; its names raise an error that says so."""

from ._adapt import make_getattr


__getattr__ = make_getattr(
    "haliax.state_dict",
    """
    ModuleWithStateDictSerialization StateDict flatten_modules_for_export from_state_dict
    from_torch_compatible_state_dict load_state_dict save_state_dict to_numpy_state_dict to_state_dict
    to_torch_compatible_state_dict unflatten_modules_from_export with_prefix
    """,
)
