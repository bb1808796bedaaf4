"""Checkpoints that know their axes: the state of a program, saved while it runs and restored onto any mesh."""

from ._checkpointer import Checkpointer as Checkpointer, save as save
from ._data_state import Resumable as Resumable
from ._errors import DamagedCheckpointError as DamagedCheckpointError
from ._inspect import CheckpointSummary as CheckpointSummary, inspect as inspect
from ._restore import restore as restore
from ._steps import list_steps as list_steps
