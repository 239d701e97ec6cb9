"""Incidents of a run: what was seen, what was decided, what it cost, when all was whole again."""

import msgspec

RECOVERY, RESTORE, JOINER, COORDINATOR = "recovery", "restore", "joiner", "coordinator"
RUN = "run"
"""All processes of the job were killed; it was started again."""
UNRESOLVED = "unresolved"
NODE_WIDE = ("node lost", "unreachable")
"""Kinds of failures that take all workers of a node."""


class LostWorker(msgspec.Struct, frozen=True):
    worker: str
    """Or a node that had none."""
    kind: str
    reason: str


class Incident(msgspec.Struct, kw_only=True):
    number: int
    at_s: float
    """When it was seen."""
    step: int
    """So many were done."""
    kind: str = UNRESOLVED
    faults: list[str] = []
    """Those on purpose that led to it."""
    lost: list[LostWorker] = []
    decisions: list[str] = []
    runner_ups: list[str] = []
    """Plans that the planner found second best and so on, the last time it was asked."""
    shape: str = ""
    shape_before: str = ""
    micro_batches: int = 0
    """That ran again."""
    steps_redone: int = 0
    late_s: float = 0.0
    """How much longer than usual the steps took that have ended since it was seen."""
    stall_s: float = 0.0
    """The same, when it is over."""
    over_s: float | None = None
    """When the first step ended that is not disturbed by it any more."""
    over_step: int | None = None
    """Which one that was."""
    costs_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Time lost until then, by cause."""
    missing: list[str] = []
    """Workers that are not back."""
    whole_s: float | None = None
    """When the last of them was back."""
    file: str = ""
    file_before: str = ""
    sources: list[str] = []

    @property
    def is_open(self) -> bool:
        return self.over_s is None

    @property
    def whole_after_s(self) -> float | None:
        """From when the next step should have ended until all workers were back; None: not yet."""
        if self.whole_s is None:
            return None
        if self.over_s is None:
            return self.whole_s - self.at_s
        return max(self.whole_s, self.over_s) - self.over_s + self.stall_s

    @property
    def title(self) -> str:
        if self.kind == COORDINATOR:
            return "the coordinator was lost"
        if self.kind == RUN:
            return "the whole job was killed"
        names = ", ".join(lost.worker for lost in self.lost)
        kinds = ", ".join(dict.fromkeys(lost.kind for lost in self.lost))
        return f"{names} lost ({kinds})" if names else "a connection broke"


def count_failures(incidents: list[Incident]) -> dict[str, int]:
    """By kind, as they look from outside: a lost node is one failure, however many workers."""
    found: dict[str, int] = {}
    for incident in incidents:
        if incident.kind == COORDINATOR:
            found["coordinator lost"] = found.get("coordinator lost", 0) + 1
        if incident.kind == RUN:
            found["job killed"] = found.get("job killed", 0) + 1
        whole: dict[tuple[str, str], None] = {}
        for lost in incident.lost:
            name = lost.worker.partition(".")[0] if lost.kind in NODE_WIDE else lost.worker
            whole[lost.kind, name] = None
        for kind, _ in whole:
            found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items()))
