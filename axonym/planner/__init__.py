"""What a compiled program sends between devices, before it runs: reports, and assertions for tests."""

from ._collectives import Collective as Collective, CollectiveKind as CollectiveKind
from ._communication_assertions import (
    assert_communication as assert_communication,
    assert_no_collectives as assert_no_collectives,
)
from ._communication_report import (
    CommunicationReport as CommunicationReport,
    communication_report as communication_report,
)
from ._spmd_warnings import Rematerialization as Rematerialization
