"""Goodput: where the time of a job went, by cause and in the names of Google's goodput library.

A cause is what happened ("detection", "lost work"); a bucket is the name under which operators
already add such times up. Time is weighed: a minute at 11/12 of the healthy pace is 55 productive
seconds and 5 seconds lost to missing devices. So the parts always add up to the time that passed.
"""

from collections.abc import Mapping

import msgspec

from holdfast.errors import invariant

BUCKETS = {
    "TRAINING_PREP": "from the first process until steps begin",
    "PROGRAM_STARTUP": "first step after a restart: compilation, warm-up, connection set-up",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": "training waits while a checkpoint is saved",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": "training waits while state is loaded",
    "WASTED_PROGRESS_FROM_DISRUPTION": "steps computed and lost",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": "from the failure until new devices are ready",
    "ELASTIC_SLICE_DOWN": "training goes on with fewer devices",
    "ELASTIC_SCALE_UP": "training waits while devices join",
    "ELASTIC_REINITIALIZATION": "groups made anew, state moved",
    "CUSTOM_BADPUT_EVENTS": "slow devices, redundant work, evaluations",
    "OTHER": "no devices to train on, the job is not running or is ending",
}

BUCKET_OF = {
    "starting": "TRAINING_PREP",
    "detection": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "scheduling": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "planning": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "groups": "ELASTIC_REINITIALIZATION",
    "moving state": "ELASTIC_REINITIALIZATION",
    "loading": "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "first step": "PROGRAM_STARTUP",
    "joining": "ELASTIC_SCALE_UP",
    "lost work": "WASTED_PROGRESS_FROM_DISRUPTION",
    "saving": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "missing devices": "ELASTIC_SLICE_DOWN",
    "slow devices": "CUSTOM_BADPUT_EVENTS",
    "slow steps": "CUSTOM_BADPUT_EVENTS",
    "redundancy": "CUSTOM_BADPUT_EVENTS",
    "faster plan": "CUSTOM_BADPUT_EVENTS",
    "evaluation": "CUSTOM_BADPUT_EVENTS",
    "waiting for devices": "OTHER",
    "not running": "OTHER",
    "ending": "OTHER",
}
"""Every cause, and the bucket it is counted in."""


class Budget(msgspec.Struct, frozen=True):
    """What became of a span of time, in milliseconds at the healthy pace."""

    total_ms: float
    productive_ms: float
    lost_ms: dict[str, float]
    """By cause, in the order of BUCKET_OF. A plan that is faster than the one that a job began with
    gains time: it loses less than none.
    """

    @property
    def goodput(self) -> float:
        """The share of the time that produced kept steps."""
        return self.productive_ms / self.total_ms if self.total_ms else 0.0

    def share(self, cause: str) -> float:
        return self.lost_ms.get(cause, 0.0) / self.total_ms if self.total_ms else 0.0

    def buckets(self) -> dict[str, float]:
        """Shares of the time by bucket, in the order of BUCKETS; those without any left out."""
        sums = dict.fromkeys(BUCKETS, 0.0)
        for cause in self.lost_ms:
            sums[BUCKET_OF[cause]] += self.share(cause)
        return {name: share for name, share in sums.items() if share > 0}


class GoodputAccount:
    """Adds time up while a run goes on."""

    def __init__(self) -> None:
        self.total_ms = 0.0
        self.productive_ms = 0.0
        self.lost_ms = dict.fromkeys(BUCKET_OF, 0.0)

    def lose(self, cause: str, span_ms: float) -> None:
        """Time in which nothing was produced."""
        self._check(cause)
        self.total_ms += span_ms
        self.lost_ms[cause] += span_ms

    def train(self, span_ms: float, losses: Mapping[str, float]) -> float:
        """Time of training, of which each cause takes its share; returns what was productive."""
        productive = span_ms * max(0.0, 1.0 - sum(losses.values()))
        self.total_ms += span_ms
        self.productive_ms += productive
        for cause, share in losses.items():
            self._check(cause)
            self.lost_ms[cause] += span_ms * share
        return productive

    def waste(self, productive_ms: float) -> None:
        """Take back work that was counted as productive and is lost now."""
        taken = min(productive_ms, self.productive_ms)
        self.productive_ms -= taken
        self.lost_ms["lost work"] += taken

    def budget(self) -> Budget:
        lost = {cause: span for cause, span in self.lost_ms.items() if span}
        budget = Budget(self.total_ms, self.productive_ms, lost)
        accounted = budget.productive_ms + sum(lost.values())
        invariant(
            abs(accounted - self.total_ms) <= 1e-6 * max(1, self.total_ms),
            f"{accounted:.3f} ms are accounted for, {self.total_ms:.3f} ms went by",
        )
        return budget

    def _check(self, cause: str) -> None:
        invariant(cause in BUCKET_OF, f"{cause!r} is not among the causes of lost time")
