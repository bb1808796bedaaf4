"""What programs send between devices and hold on them, also of machines that are not there; assertions for tests."""

from ._buffer_assignment import ProgramMemory as ProgramMemory
from ._candidate import Candidate as Candidate, Evaluation as Evaluation, StepTime as StepTime
from ._collectives import Collective as Collective, CollectiveKind as CollectiveKind
from ._communication_assertions import (
    assert_communication as assert_communication,
    assert_no_collectives as assert_no_collectives,
)
from ._communication_report import (
    CommunicationReport as CommunicationReport,
    communication_report as communication_report,
)
from ._compile_for import compile_for as compile_for
from ._compiled_program import CompiledProgram as CompiledProgram
from ._described_devices import (
    DescribedDevice as DescribedDevice,
    Topology as Topology,
    described_devices as described_devices,
)
from ._hardware import HARDWARE as HARDWARE, Hardware as Hardware, get_hardware as get_hardware
from ._memory_assertions import assert_fits as assert_fits
from ._memory_report import MemoryReport as MemoryReport, memory_report as memory_report
from ._plan import Plan as Plan, read_plan as read_plan
from ._plan_comparison import (
    Alternative as Alternative,
    PlanAlternatives as PlanAlternatives,
    PlanComparison as PlanComparison,
)
from ._plan_search import plan as plan
from ._saved_activations import SavedActivation as SavedActivation
from ._spmd_warnings import Rematerialization as Rematerialization
from ._step_time import estimate_step_time as estimate_step_time
from ._timeline import Timeline as Timeline, TimelineEvent as TimelineEvent
