"""What XLA's partitioner says of arrays that it had to replicate; it says so in the error stream only."""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from ..report._op_name import split_op_name
from ._hlo_program import parse_arrays, read_op_name


_ERROR_STREAM = threading.Lock()  # the process has one
_REMATERIALIZATION = re.compile(
    r"\[SPMD\] Involuntary full rematerialization\. The compiler (?:cannot|was not able to) go from sharding "
    r"(\{.*?\}) to (\{.*?\}) .*?for HLO operation:? %?[\w.\-]+ = (\S+) (.*)"
)


@dataclass(frozen=True, slots=True)
class Rematerialization:
    """An array that the compiler replicates and slices again, since it knows no way from one sharding to the other.

    Attributes:
        source: The sharding that it has, in XLA's words.
        target: The sharding that is asked for.
        bytes: The bytes of the part of it that a device has before.
        layer: The scopes that it is in.
        operation: The operation that asks for it.

    Example:
        >>> import axonym as nym
        >>> nym.planner.Rematerialization("{devices=[8,1]<=[8]}", "{devices=[1,8]<=[8]}", 64, "", "reshape").bytes
        64
    """

    source: str
    target: str
    bytes: int
    layer: str
    operation: str


@contextlib.contextmanager
def capture_error_stream() -> Iterator[list[str]]:
    """Collects what the process, XLA included, writes to its error stream, and writes it there afterwards."""
    lines: list[str] = []
    with _ERROR_STREAM, tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read()
            lines += text.decode(errors="replace").splitlines()
            os.write(2, text)


def read_rematerializations(lines: list[str]) -> tuple[Rematerialization, ...]:
    """Returns the arrays that the partitioner says it has replicated, from the lines of its log."""
    found = filter(None, map(_REMATERIALIZATION.search, lines))
    return tuple(dict.fromkeys(_make_rematerialization(*one.groups()) for one in found))


def _make_rematerialization(source: str, target: str, shape: str, rest: str) -> Rematerialization:
    layer, operation = split_op_name(read_op_name(rest))
    return Rematerialization(source, target, sum(one.bytes for one in parse_arrays(shape)), layer, operation)
