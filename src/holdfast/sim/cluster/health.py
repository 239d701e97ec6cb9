"""Which devices are gone and which are slow, and the part of it that decides throughput.

A *seat* is described by the speeds of the devices it has left, fastest first; a pipeline by its
seats that are not whole. Two situations with equal descriptions have equal throughput, wherever
in the cluster they are, and that is what lets 100,000 devices be simulated with a few numbers.
"""

from collections.abc import Collection, Iterable

import msgspec

from holdfast.sim.cluster.events import Cause
from holdfast.sim.cluster.job import SimulatedJob

Seat = tuple[float, ...]
"""Speeds of the devices left, 1.0 = healthy, fastest first."""
Hurt = tuple[tuple[int, Seat], ...]
"""(stage, seat) of a pipeline's seats that are not whole, in stage order."""
Hurts = tuple[Hurt, ...]
"""All pipelines that are not whole, in an order that does not depend on where they are."""


class ClusterDamage(msgspec.Struct, frozen=True):
    """Every pipeline that is not whole."""

    pipelines: tuple[tuple[int, Hurt], ...] = ()

    @property
    def hurts(self) -> Hurts:
        return tuple(sorted(hurt for _, hurt in self.pipelines))

    def broken(self, tensor: int) -> tuple[int, ...]:
        """Pipelines that have lost a device."""
        return tuple(
            pipeline
            for pipeline, hurt in self.pipelines
            if any(len(seat) < tensor for _, seat in hurt)
        )

    def losses(self, tensor: int) -> Hurts:
        """What is left if no device were slow: the pipelines that have lost devices."""
        hurts = []
        for _, hurt in self.pipelines:
            short = tuple((k, (1.0,) * len(seat)) for k, seat in hurt if len(seat) < tensor)
            if short:
                hurts.append(short)
        return tuple(sorted(hurts))

    @property
    def has_slow(self) -> bool:
        return any(speed < 1 for _, hurt in self.pipelines for _, seat in hurt for speed in seat)


class ClusterHealth:
    """The state of all devices during a run: only what is not healthy is kept."""

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.gone: dict[int, Cause] = {}
        self.slow: dict[int, float] = {}
        self._situation: ClusterDamage | None = None

    def lose(self, devices: Iterable[int], cause: Cause) -> tuple[int, ...]:
        """Take devices away; returns those that were there."""
        taken = tuple(device for device in devices if device not in self.gone)
        for device in taken:
            self.gone[device] = cause
        self._situation = None
        return taken

    def restore(self, devices: Iterable[int]) -> None:
        """Devices are there again (or others stand in their place), at full speed."""
        for device in devices:
            self.gone.pop(device, None)
            self.slow.pop(device, None)
        self._situation = None

    def slow_down(self, devices: Iterable[int], factor: float) -> None:
        for device in devices:
            self.slow[device] = max(factor, self.slow.get(device, 1.0))
        self._situation = None

    def speed_up(self, devices: Iterable[int]) -> None:
        for device in devices:
            self.slow.pop(device, None)
        self._situation = None

    def gone_nodes(self) -> tuple[int, ...]:
        return tuple(sorted({self.job.node_of(device) for device in self.gone}))

    def situation(self) -> ClusterDamage:
        if self._situation is None:
            self._situation = self._describe()
        return self._situation

    def with_nodes(self, nodes: Iterable[int]) -> ClusterDamage:
        """The situation if these nodes were whole."""
        other = ClusterHealth(self.job)
        other.gone, other.slow = dict(self.gone), dict(self.slow)
        for node in nodes:
            other.restore(self.job.node_devices(node))
        return other.situation()

    def lost_since(self, known: Collection[int]) -> ClusterDamage:
        """Only the losses that were not there before."""
        other = ClusterHealth(self.job)
        other.gone = {device: why for device, why in self.gone.items() if device not in known}
        return other.situation()

    def _describe(self) -> ClusterDamage:
        seats = sorted({self.job.seat(device) for device in (*self.gone, *self.slow)})
        hurts: dict[int, list[tuple[int, Seat]]] = {}
        for pipeline, stage in seats:
            hurts.setdefault(pipeline, []).append((stage, self._seat(pipeline, stage)))
        return ClusterDamage(tuple((pipeline, tuple(hurt)) for pipeline, hurt in hurts.items()))

    def _seat(self, pipeline: int, stage: int) -> Seat:
        first = (pipeline * self.job.stages + stage) * self.job.tensor
        left = [d for d in range(first, first + self.job.tensor) if d not in self.gone]
        return tuple(sorted((1 / self.slow.get(device, 1.0) for device in left), reverse=True))
