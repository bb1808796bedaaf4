"""Several processes: starting them, barriers, broadcasts, agreement, and host-local data."""

from ._host_local import global_to_host_local as global_to_host_local, host_local_to_global as host_local_to_global
from ._initialize import initialize as initialize
from ._rendezvous import barrier_sync as barrier_sync
from ._shared_values import (
    assert_same_on_all_hosts as assert_same_on_all_hosts,
    broadcast_from_host_zero as broadcast_from_host_zero,
)
