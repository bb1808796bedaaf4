"""Training on many devices: parameters in shards, policies, microbatches, replicas and optimizers."""

from . import _parameters as _parameters  # which registers how layers take parameters
from ._fsdp import Optimizer as Optimizer, fsdp as fsdp, sharded_optimizer as sharded_optimizer
from ._local_updates import DiLoCo as DiLoCo, LocalState as LocalState, diloco as diloco
from ._microbatch import microbatch as microbatch
from ._offloaded_optimizer import offloaded_optimizer as offloaded_optimizer
from ._policy import Policy as Policy
from ._precision import Precision as Precision
