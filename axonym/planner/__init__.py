"""What a program does on a machine that is not there: compiled for it, and reported; assertions for tests."""

from ._buffer_assignment import ProgramMemory as ProgramMemory
from ._collectives import Collective as Collective, CollectiveKind as CollectiveKind
from ._communication_assertions import (
    assert_communication as assert_communication,
    assert_no_collectives as assert_no_collectives,
)
from ._communication_report import (
    CommunicationReport as CommunicationReport,
    communication_report as communication_report,
)
from ._compile_for import CompiledProgram as CompiledProgram, compile_for as compile_for
from ._described_devices import (
    DescribedDevice as DescribedDevice,
    Topology as Topology,
    described_devices as described_devices,
)
from ._hardware import HARDWARE as HARDWARE, Hardware as Hardware, get_hardware as get_hardware
from ._spmd_warnings import Rematerialization as Rematerialization
