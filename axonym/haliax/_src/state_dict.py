"""`haliax._src.state_dict`: the names of `haliax.state_dict`."""

from typing import Any

from .. import state_dict


def __getattr__(name: str) -> Any:
    return getattr(state_dict, name)
