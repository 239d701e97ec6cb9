"""What the coordinator tells the workers to do. Every order has a number from one counter, which is
also the number of the epoch it starts; numbers are never used twice.

    start     the first plan: all workers make their groups and their initial state
    recover   after a failure: go on under this plan; first complete the step in flight, as `share`
              says
    change    planned: build the next plan's groups while training; switch when all are ready
    restore   state was lost: all load `version` from snapshots and go on from there, in a new
              lineage

An order is sent to each worker with its own share only. Plans travel as differences where the
receiver knows what they differ from.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from holdfast.control.message import Message
from holdfast.control.report import Addend, Outcome, Slot
from holdfast.plan.feeding import UnitSource
from holdfast.plan.plan import Plan
from holdfast.plan.text import parse_plan
from holdfast.plan.without_workers import without_workers


class FullPlan(msgspec.Struct, frozen=True, tag="full"):
    text: str


class SamePlan(msgspec.Struct, frozen=True, tag="same"):
    """The plan of an epoch before."""

    epoch: int


class PlanWithout(msgspec.Struct, frozen=True, tag="without"):
    """The plan of an epoch before, less the stages that these workers take part in."""

    epoch: int
    gone: tuple[str, ...]


PlanChange = FullPlan | SamePlan | PlanWithout


def read_plan(change: PlanChange, known: Mapping[int, Plan]) -> Plan:
    """`known`: the plans of the epochs before."""
    if isinstance(change, FullPlan):
        return parse_known_plan(change.text)
    if isinstance(change, SamePlan):
        return known[change.epoch]
    return without_workers(known[change.epoch], change.gone)[0]


@lru_cache(maxsize=16)
def parse_known_plan(text: str) -> Plan:
    """The same text comes when a plan is wanted, with its order, and with their journal entries."""
    return parse_plan(text)


OrderKind = Literal["start", "recover", "change", "restore"]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part in completing the step in flight."""

    step: int
    """All are at this version, once those behind have rolled forward; this step is completed."""
    base: int
    """The epoch whose plan numbers the slots."""
    outcome: Outcome | None = None
    """Given: first finish step `step - 1` with the reduced gradients that are here."""
    revert: bool = False
    """The planned change that was entered here is void: go back to the plan before it."""
    keep: tuple[Slot, ...] = ()
    """Local sums that count; all others are cleared."""
    give: tuple[Slot, ...] = ()
    """Results that this worker hands to the slot's other holders."""
    done: tuple[Slot, ...] = ()
    """Slots whose holders all have the result: nothing is exchanged."""
    losses: tuple[int, ...] = ()
    """Micro-batches whose loss, known here, counts."""
    micro_batches: tuple[int, ...] = ()
    """What has to run again, the same for all."""
    living: tuple[str, ...] = ()
    """Of this worker's groups, those that live on; all others are made anew."""
    recompute: dict[Addend, tuple[int, ...]] = {}
    """Of those, what is added to which sum; nothing else is."""
    rate_factor: float = 1.0


class Joiner(msgspec.Struct, frozen=True):
    """A worker that catches up, and who gives it which unit (see `plan/feeding.py`)."""

    name: str
    sources: dict[int, tuple[UnitSource, ...]]

    @property
    def feeders(self) -> tuple[str, ...]:
        """All its sources, by name."""
        names = {source.name for sources in self.sources.values() for source in sources}
        return tuple(sorted(names))


class Order(Message, frozen=True, kw_only=True, tag="order"):
    number: int
    kind: OrderKind
    plan: PlanChange
    incarnations: dict[str, int]
    """Of every worker of the plan."""
    lineage: int = 0
    share: Share | None = None
    """recover"""
    joiners: tuple[Joiner, ...] = ()
    """change: who has to be current before the switch."""
    from_memory: bool = False
    """change: joiners take the bulk of their state from snapshots in memory, and only the steps
    since then from their sources.
    """
    at_step: int = 0
    """change: not before this step; start: the first step."""
    version: int = 0
    """restore: what to load."""
    agreed_in: int = 0
    """restore: the epoch that agreed on the step before `version`; snapshots of others are not
    of this history.
    """
    reason: str = ""


class Freeze(Message, frozen=True, tag="freeze"):
    """Stop, break all groups that are not at rest then, and report."""

    round: int
    reason: str = ""
    leaving: tuple[str, ...] = ()
    """Workers without a place in the plan that will follow, as far as it is known: only groups
    with one of them are broken at once. Empty: all are.
    """
