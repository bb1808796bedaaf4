"""What Axonym refuses: an error whose text is known word by word."""

import re

import pytest


def refusal(message: str, error: type[Exception] = ValueError) -> pytest.RaisesExc[Exception]:
    """Expects an error with this text in it, which is not a regular expression."""
    return pytest.raises(error, match=re.escape(message))
