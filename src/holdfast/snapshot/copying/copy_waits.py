"""In which waits a worker's copies run.

A worker waits for messages many times in a step, mostly for too short a time to be worth it, and
sometimes just before its own message takes the bus. The timeline of the plan says which waits are
bubbles, from what things take at present; copies are placed into those (`placement`). That is
worked out beside the training: when another plan is entered, and when another profile comes. Until
it is known for a plan, any wait counts. The wait for the others at the end of the step always does:
no message of this worker travels then, and what is left must be copied anyway.

Where the bubbles do not hold all of it, any wait counts, too: a copy in a short one may be in the
way of a message, but what is left at the end holds up the update. (Two stages on an H200: 2.4 %
of a step in bubbles alone, 1.0 % in any wait.)
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future

from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.timeline import evaluate
from holdfast.snapshot.copying.background import in_background
from holdfast.snapshot.placement import AGREE, Placement, SpanKey, place

log = logging.getLogger(__name__)


def place_copies(
    plan: Plan, profile: Profile, worker: str, sizes: Sequence[int], rate: float
) -> Placement:
    """Of one worker's chunks, copied at `rate` bytes per second."""
    timeline = evaluate(plan, profile)
    lane = timeline.layout.lane_of_worker[worker]
    return place(timeline, lane, sizes, rate)


class CopyWaits:
    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._plan: Plan | None = None
        self._sizes: tuple[int, ...] = ()
        self._profile: Profile | None = None
        self._rate = 0.0
        self._is_due = False
        self._placing: Future[Placement] | None = None
        self._waits: frozenset[SpanKey] | None = None
        """None: any."""
        self.placement: Placement | None = None

    def enter(self, plan: Plan, sizes: tuple[int, ...]) -> None:
        """Chunks of these sizes are copied under this plan from now on."""
        self._plan, self._sizes = plan, sizes
        self._placing = self._waits = self.placement = None
        self._is_due = True

    def learn(self, profile: Profile) -> None:
        """What things take by now; called from any thread."""
        self._profile, self._is_due = profile, True

    def allows(self, key: SpanKey) -> bool:
        return self._waits is None or key in self._waits

    def look(self, rate: float) -> None:
        """Between two steps, by the training thread: place copies if that is due, and use what was
        placed. `rate`: of copying, in bytes per second; 0: not known yet.
        """
        self._rate = rate or self._rate
        if self._placing is not None and self._placing.done():
            done, self._placing = self._placing, None
            self._use(done)
        if self._is_due and self._placing is None:
            self._begin()

    def _begin(self) -> None:
        plan, profile, sizes, rate = self._plan, self._profile, self._sizes, self._rate
        if plan is None or profile is None or rate <= 0:
            return
        self._is_due = False
        self._placing = in_background(
            "placing copies", lambda: place_copies(plan, profile, self._worker, sizes, rate)
        )

    def _use(self, done: Future[Placement]) -> None:
        if (error := done.exception()) is not None:
            log.warning("copies stay where they are: %s", error)
            return
        self.placement = done.result()
        fits = not self.placement.left
        self._waits = frozenset((*self.placement.waits, AGREE)) if fits else None
        where = "they are copied there" if fits else "copies run in any wait"
        log.info("%s: %s", self.placement.reason, where)
