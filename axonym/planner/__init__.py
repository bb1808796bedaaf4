"""What programs send between devices and hold on them, also of machines that are not there; assertions for tests."""

from ._compiler._compile_for import compile_for as compile_for
from ._compiler._compiled_program import CompiledProgram as CompiledProgram
from ._machine._described_devices import (
    DescribedDevice as DescribedDevice,
    Topology as Topology,
    described_devices as described_devices,
)
from ._machine._hardware import (
    HARDWARE as HARDWARE,
    GpuTarget as GpuTarget,
    Hardware as Hardware,
    get_hardware as get_hardware,
    register_hardware as register_hardware,
)
from ._machine._hardware_file import read_hardware as read_hardware
from ._plan._candidate import Candidate as Candidate, Evaluation as Evaluation
from ._plan._plan import Plan as Plan, read_plan as read_plan
from ._plan._plan_table import (
    Alternative as Alternative,
    PlanAlternatives as PlanAlternatives,
    PlanComparison as PlanComparison,
)
from ._program._collectives import Collective as Collective, CollectiveKind as CollectiveKind
from ._program._compiler_output import ProgramMemory as ProgramMemory, Rematerialization as Rematerialization
from ._program._saved_activations import SavedActivation as SavedActivation
from ._reports._communication import (
    CommunicationReport as CommunicationReport,
    assert_communication as assert_communication,
    assert_no_collectives as assert_no_collectives,
    communication_report as communication_report,
)
from ._reports._memory import MemoryReport as MemoryReport, assert_fits as assert_fits, memory_report as memory_report
from ._search._calibration import Measurement as Measurement
from ._search._plan_search import plan as plan
from ._step_time._step_time import StepTime as StepTime, estimate_step_time as estimate_step_time
from ._step_time._timeline import Timeline as Timeline, TimelineEvent as TimelineEvent
