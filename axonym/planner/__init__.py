"""What compiled programs send between devices and hold on them, before they run: reports, and assertions for tests."""

from ._collectives import Collective as Collective, CollectiveKind as CollectiveKind
from ._communication_assertions import (
    assert_communication as assert_communication,
    assert_no_collectives as assert_no_collectives,
)
from ._communication_report import (
    CommunicationReport as CommunicationReport,
    communication_report as communication_report,
)
from ._memory_report import (
    MemoryReport as MemoryReport,
    SavedActivation as SavedActivation,
    memory_report as memory_report,
)
from ._spmd_warnings import Rematerialization as Rematerialization
