"""What is known of the workers, and how often that changes: the facts a decision starts from.

Times and rates are in the unit of the profile (seconds for the profiles of `hardware.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import msgspec

from holdfast.errors import HoldfastError
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.workers import node_of


class Health(msgspec.Struct, frozen=True, dict=True):
    """Workers that are gone, workers that are slow, and workers that wait for something to do."""

    dead: tuple[str, ...] = ()
    slow: tuple[tuple[str, float], ...] = ()
    """(worker, how many times longer it computes)."""
    spares: tuple[str, ...] = ()
    """Healthy or slow workers outside the plan, in the order in which they are taken."""

    @cached_property
    def gone(self) -> frozenset[str]:
        return frozenset(self.dead)

    @cached_property
    def factors(self) -> dict[str, float]:
        return dict(self.slow)

    def slow_down(self, worker: str) -> float:
        return self.factors.get(worker, 1.0)

    def capacity(self, workers: Collection[str]) -> float:
        """What is left of the workers, in healthy ones."""
        return sum(1 / self.slow_down(worker) for worker in workers if worker not in self.gone)


def health_of(
    plan: Plan,
    dead: Sequence[str] = (),
    slow: Mapping[str, float] | None = None,
    spares: Sequence[str] = (),
) -> Health:
    """By names of workers, nodes or roles, each checked against the plan."""
    known = (*plan.workers, *spares)
    lost = [worker for pattern in dead for worker in _select(plan, known, pattern)]
    factors: dict[str, float] = {}
    for pattern, factor in (slow or {}).items():
        if factor < 1:
            raise HoldfastError(
                f"slow {pattern}={factor:g}: how many times longer, at least 1 is needed"
            )
        for worker in _select(plan, known, pattern):
            factors[worker] = max(factor, factors.get(worker, 1.0))
    gone = dict.fromkeys(lost)
    return Health(
        dead=tuple(gone),
        slow=tuple((w, f) for w, f in factors.items() if w not in gone and f > 1),
        spares=tuple(worker for worker in spares if worker not in gone),
    )


def _select(plan: Plan, known: Sequence[str], pattern: str) -> tuple[str, ...]:
    outside = [w for w in known if w not in plan.seats and pattern in (w, node_of(w))]
    if outside and not any(pattern in (w, node_of(w)) for w in plan.workers):
        return tuple(outside)
    return (*plan.select(pattern), *outside)


def seen_from(
    plan: Plan, workers: Sequence[str], dead: Collection[str], slow: Mapping[str, float]
) -> Health:
    """The health of a whole cluster as seen from a plan: live workers it does not use are
    spares.
    """
    return Health(
        dead=tuple(worker for worker in workers if worker in dead),
        slow=tuple((w, f) for w, f in slow.items() if w not in dead and f > 1),
        spares=tuple(w for w in workers if w not in dead and w not in plan.seats),
    )


class FailureRates(msgspec.Struct, frozen=True, kw_only=True):
    """How often something changes, estimated from what was seen so far and a prior.

    The estimate is that of a gamma prior: (events seen + events of the prior) / (time seen + time
    of the prior). The default prior is one failure in 50,000 device hours, of the order seen in
    large clusters, and weighs as much as one real failure.
    """

    failures: int = 0
    device_time: float = 0.0
    """Over all devices, healthy ones counted."""
    repairs: int = 0
    wall_time: float = 0.0
    prior_failures: float = 1.0
    prior_device_time: float = 50_000 * 3600.0
    prior_repairs: float = 0.0
    prior_wall_time: float = 3600.0

    @property
    def per_device(self) -> float:
        seen = self.failures + self.prior_failures
        return seen / (self.device_time + self.prior_device_time)

    @property
    def repair(self) -> float:
        return (self.repairs + self.prior_repairs) / (self.wall_time + self.prior_wall_time)

    def change(self, num_devices: int) -> float:
        """The rate of the next change, whatever it is."""
        return num_devices * self.per_device + self.repair


class Situation(msgspec.Struct, frozen=True):
    """Everything a decision depends on."""

    plan: Plan
    health: Health = Health()
    profile: Profile = Profile()
    rates: FailureRates = FailureRates()
