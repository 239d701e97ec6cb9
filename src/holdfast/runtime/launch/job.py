"""A job that can run, apart from torch: `prepare` makes it."""

from functools import cached_property

import msgspec

from holdfast.control.worker_reports import Planned
from holdfast.plan.transition import Transition
from holdfast.plan.workers import parse_worker, worker_grid
from holdfast.runtime.config.job_file import JobConfig


class Job(msgspec.Struct, frozen=True, dict=True):
    """A job that can run: its settings, and its plans in the order of their steps."""

    config: JobConfig
    plans: tuple[Planned, ...]
    transitions: tuple[Transition, ...]
    """From each plan to the next."""
    first_step: int = 0
    """Of a run that goes on from an earlier one."""

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """All workers with a role in any of the plans, and the spares."""
        return (*self._seated, *self.spares)

    @cached_property
    def _seated(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for planned in self.plans for name in planned.plan.workers))

    @cached_property
    def spares(self) -> tuple[str, ...]:
        """On nodes after the others and as large as those, so that no node takes a worker and its
        spare with it.
        """
        places = [parse_worker(name) for name in self._seated]
        num_nodes, per_node = (1 + max(numbers) for numbers in zip(*places, strict=True))
        return worker_grid(self.config.job.spares, per_node, num_nodes)

    @property
    def num_parameters(self) -> int:
        tensors = {t.name: t for unit in self.plans[0].plan.units for t in unit.tensors}
        return sum(tensor.num_elements for tensor in tensors.values())

    @property
    def backend(self) -> str:
        return resolve_backend(self.config)


def resolve_backend(config: JobConfig) -> str:
    if config.job.backend != "auto":
        return config.job.backend
    return "nccl" if config.job.device == "cuda" else "gloo"
