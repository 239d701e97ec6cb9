"""What the detector is told: one observation per step, and what is in it.

All times are seconds. A fact that was not measured is left out, never guessed: the detector works
with step times alone, and gets sharper with every kind of report it is given.
"""

import msgspec


class Workload(msgspec.Struct, frozen=True):
    """What makes one micro-batch heavy or light."""

    tokens: int
    squares: int = 0
    """Sum of the squared document lengths: attention looks only inside a document."""
    documents: int = 1


def workload_of(lengths: tuple[int, ...] | list[int]) -> Workload:
    """Of a pack of documents."""
    return Workload(sum(lengths), sum(length * length for length in lengths), len(lengths))


class WorkerTimes(msgspec.Struct, frozen=True):
    """What one worker computed in a step."""

    worker: str
    times: dict[str, float]
    """Seconds by kind of computation (F, B or I, W), summed over its micro-batches. Sums are
    enough, as the workload model is linear.
    """
    ended: float = 0.0
    """When its last computation ended, from the beginning of the step; 0 = not measured."""


class PathReport(msgspec.Struct, frozen=True):
    """What one message took between two workers, or one reduction among several.

    The time runs from the moment when all ends are ready, so it holds no waiting for a late peer:
    of a reduction it is what the last one to enter sees, of a message the overlap of send and
    receive. Several messages of a step are given by their median.
    """

    members: tuple[str, ...]
    """Sender and receiver, or all members of a ring in order."""
    num_bytes: int
    time: float


class StepObservation(msgspec.Struct, frozen=True):
    step: int
    step_time: float
    workloads: tuple[Workload, ...] = ()
    """One per micro-batch; empty: all alike."""
    workers: tuple[WorkerTimes, ...] = ()
    paths: tuple[PathReport, ...] = ()
