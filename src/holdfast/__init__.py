"""Holdfast keeps hybrid-parallel LLM training running while parts of the cluster fail under it.

    import holdfast as hf

    hf.train("job.toml", model=build)           # a job from Python; `holdfast run` is the same
    hf.Callback                                 # called while it runs: on_step, on_recovery, ...
    hf.sequential(units, loss=...)              # a model from any list of modules
    hf.column, hf.row, hf.vocabulary, ...       # how its modules are cut over a tensor group
    hf.Snapshotter, hf.RandomState              # snapshots in any PyTorch training loop

What is in `__all__` stays; everything else may change. Importing the package costs nothing: torch
is imported with the first name that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api.train import train
    from holdfast.errors import HoldfastError
    from holdfast.models.sequential import cross_entropy, sequential
    from holdfast.models.styles import column, replicated, row, vocabulary
    from holdfast.observe.callbacks.callback import Callback
    from holdfast.observe.events import (
        CheckpointWritten,
        Evaluated,
        JobEnded,
        JobStarted,
        PlanChanged,
        Recovered,
        Restored,
        StepDone,
    )
    from holdfast.observe.loggers.logger import LogPoint, LogRun
    from holdfast.snapshot.loop.random_state import RandomState
    from holdfast.snapshot.loop.snapshotter import Snapshotter

__all__ = [
    "Callback",
    "CheckpointWritten",
    "Evaluated",
    "HoldfastError",
    "JobEnded",
    "JobStarted",
    "LogPoint",
    "LogRun",
    "PlanChanged",
    "RandomState",
    "Recovered",
    "Restored",
    "Snapshotter",
    "StepDone",
    "__version__",
    "column",
    "cross_entropy",
    "replicated",
    "row",
    "sequential",
    "train",
    "vocabulary",
]
__version__ = "0.1.0"

_HOMES = {
    "Callback": "holdfast.observe.callbacks.callback",
    "CheckpointWritten": "holdfast.observe.events",
    "Evaluated": "holdfast.observe.events",
    "HoldfastError": "holdfast.errors",
    "JobEnded": "holdfast.observe.events",
    "JobStarted": "holdfast.observe.events",
    "LogRun": "holdfast.observe.loggers.logger",
    "PlanChanged": "holdfast.observe.events",
    "LogPoint": "holdfast.observe.loggers.logger",
    "RandomState": "holdfast.snapshot.loop.random_state",
    "Recovered": "holdfast.observe.events",
    "Restored": "holdfast.observe.events",
    "Snapshotter": "holdfast.snapshot.loop.snapshotter",
    "StepDone": "holdfast.observe.events",
    "column": "holdfast.models.styles",
    "cross_entropy": "holdfast.models.sequential",
    "replicated": "holdfast.models.styles",
    "row": "holdfast.models.styles",
    "sequential": "holdfast.models.sequential",
    "train": "holdfast.api.train",
    "vocabulary": "holdfast.models.styles",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
