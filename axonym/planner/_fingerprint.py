"""A hash of a lowered program with the names and source lines of its operations, but without who compiles it.

MLIR writes an operation with its location: its name, the innermost frames and what these were called from. The frames
that are outside of a given file, which calls the function, differ between two places that compile the same program.
"""

import functools
import hashlib
import re


_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)\n?", re.MULTILINE)
_REFERENCE = re.compile(r"#loc\d*")


def fingerprint_module(text: str, file: str) -> str:
    """Returns the hash of a program in MLIR's text with locations.

    Args:
        text: The program.
        file: The file that calls the function. Frames of it, and those that it is called from, do not count.
    """
    locations, outside = dict(_DEFINITION.findall(text)), f'"{file}":'

    @functools.cache
    def hash_location(name: str) -> str:
        content = locations.get(name, "")
        names = _REFERENCE.findall(content)
        is_call = content.startswith("callsite(")
        if content.startswith(outside) or (names and locations.get(names[0], "").startswith(outside)):
            return ""  # the place itself, or the function that it is in
        parts = [hash_location(part) for part in names]
        return "" if is_call and not parts[0] else _hash_text(_REFERENCE.sub("", content) + " ".join(parts))

    program = _DEFINITION.sub("", text)
    return _hash_text(_REFERENCE.sub(lambda found: hash_location(found[0]), program))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
