"""When workers are told what things take, so that they place their copies by it.

A worker places its copies itself, anew under every plan; what it cannot know is what the units of
other workers take. So all are told the job's profile: once there is one, when another epoch began
(workers that have come since know nothing), and when it no longer fits. A profile is always a
little different from the one before, and placing takes a worker a moment: a small change does not
count, and a large one not before some steps have passed.
"""

from holdfast.control.snapshots.messages import PlaceCopies
from holdfast.plan.profile import Profile, UnitCost

DRIFT = 0.25
"""Relative change of what all units take together, or of one of them as a share of that."""
LEAST_STEPS = 32
"""Between two of the same epoch."""


class CopyPlacing:
    def __init__(self) -> None:
        self._told: Profile | None = None
        self._epoch, self._step = -1, 0

    def stepped(self, epoch: int, step: int, profile: Profile) -> PlaceCopies | None:
        """A step is done. `profile`: of now; without units, nothing was measured yet."""
        if not profile.unit:
            return None
        if self._told is not None and epoch == self._epoch and not self._is_due(step, profile):
            return None
        self._told, self._epoch, self._step = profile, epoch, step
        return PlaceCopies(profile=profile)

    def _is_due(self, step: int, profile: Profile) -> bool:
        """Of the same epoch."""
        assert self._told is not None
        return step - self._step >= LEAST_STEPS and differs(self._told, profile)


def differs(before: Profile, now: Profile) -> bool:
    """By so much that bubbles may lie elsewhere?"""
    old = {name: _total(cost) for name, cost in before.unit.items()}
    new = {name: _total(cost) for name, cost in now.unit.items()}
    whole = sum(old.values())
    if old.keys() != new.keys() or abs(sum(new.values()) - whole) > DRIFT * whole:
        return True
    return any(abs(new[name] - old[name]) > DRIFT * whole for name in old)


def _total(cost: UnitCost) -> float:
    return cost.forward + cost.backward_input + cost.backward_weight
