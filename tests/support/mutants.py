"""The protocol with one rule left out: planted from outside, to show that each rule is needed.

A mutant is a function that gets a `MonkeyPatch` and replaces one pure function or method of the
machines, or of the symbolic worker that drives them. To plant one in a test:

    def test_...(monkeypatch):
        plant("freeze", monkeypatch)
        assert run_seed(seed).broken is not None

To add one, write it below with `@mutant`, and say in `tests/sim/fuzz/test_mutants.py` which seed
catches it.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.control import coordinator, giving_up, planned, recovery, rounds
from holdfast.control.coordinator import Coordinator
from holdfast.control.coordinator_state import CoordinatorState
from holdfast.control.delivery import Sender
from holdfast.control.effects import Effect, Record, Stop
from holdfast.control.fact_intake import FactIntake
from holdfast.control.hang_monitor import HangMonitor, Looked
from holdfast.control.joining import JoinerParts, SourceFeed
from holdfast.control.journal_entries import EnteredByAll, Started
from holdfast.control.journal_state import JournalState, members_of
from holdfast.control.member_status import MemberStatus
from holdfast.control.order import Share
from holdfast.control.report import Member
from holdfast.control.roster import Roster
from holdfast.control.snapshots.coordination import SnapshotCoordination
from holdfast.control.step_record import StepRecord
from holdfast.control.worker import WorkerMachine
from holdfast.control.worker_position import WorkerPosition
from holdfast.sim.fuzz.joins import Joining
from holdfast.sim.fuzz.run import run_seed
from holdfast.sim.fuzz.step import Step
from holdfast.snapshot.snapshot_index import SnapshotIndex

Mutant = Callable[[pytest.MonkeyPatch], None]

MUTANTS: dict[str, Mutant] = {}


def mutant(planted: Mutant) -> Mutant:
    MUTANTS[planted.__name__] = planted
    return planted


def plant(name: str, patch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](patch)


def around(patch: pytest.MonkeyPatch, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """`wrapper` gets the original function first."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **named: wrapper(original, *args, **named))


# Rounds and orders


@mutant
def final_rollback(patch: pytest.MonkeyPatch) -> None:
    """A rollback that not all members have entered is not ordered again."""
    patch.setattr(rounds, "is_late", lambda *_: False)


@mutant
def fixed_target(patch: pytest.MonkeyPatch) -> None:
    """What a step comes to in mode `fast` is decided anew in every round."""
    patch.setattr(rounds, "_known_target", lambda *_: ())


@mutant
def outcome_record(patch: pytest.MonkeyPatch) -> None:
    """A follower computes an outcome of its own: the same step, other bits."""

    def decision(original: Any, *args: Any) -> Any:
        made = original(*args)
        shares = {name: own(share, made.order.number) for name, share in made.shares.items()}
        return msgspec.structs.replace(made, shares=shares)

    def own(share: Share, number: int) -> Share:
        if share.outcome is None:
            return share
        outcome = msgspec.structs.replace(share.outcome, epoch=number)
        return msgspec.structs.replace(share, outcome=outcome)

    around(patch, rounds, "_decision", decision)


@mutant
def fresh_numbers(patch: pytest.MonkeyPatch) -> None:
    """Numbers of changes that came to nothing are used again."""
    patch.setattr(
        JournalState, "next_number", lambda journal: journal.last.number + 1 if journal.last else 1
    )


@mutant
def proof(patch: pytest.MonkeyPatch) -> None:
    """A round is decided although all members of the epoch may be alive and unaware of it."""
    patch.setattr(recovery, "_is_stopped", lambda *_: True)


@mutant
def decide_all(patch: pytest.MonkeyPatch) -> None:
    """A round is decided when the members of the last order have answered."""

    def begin(original: Any, state: CoordinatorState, *args: Any) -> None:
        before = state.round
        original(state, *args)
        if state.round is not None and state.round is not before:
            asked = members_of(state.journal.last)
            state.round.waiting = {m: None for m in state.round.waiting if m in asked}

    around(patch, coordinator, "begin_if_needed", begin)


@mutant
def redo_verdict(patch: pytest.MonkeyPatch) -> None:
    """Verdicts of the coordinators before start no round."""
    inherited: dict[int, dict[Member, str]] = {}

    def init(original: Any, self: Coordinator, *args: Any) -> None:
        original(self, *args)
        inherited[id(self._state)] = dict(self._state.journal.fenced)

    def why(original: Any, state: CoordinatorState) -> str:
        fenced = state.status.fenced
        old = inherited.get(id(state), {})
        state.status.fenced = {member: None for member in fenced if member not in old}
        try:
            return str(original(state))
        finally:
            state.status.fenced = fenced

    around(patch, Coordinator, "__init__", init)
    around(patch, recovery, "_why", why)


# The journal


@mutant
def journal_first(patch: pytest.MonkeyPatch) -> None:
    """What is sent is made durable afterwards."""

    def take(original: Any, *args: Any) -> list[Effect]:
        effects = original(*args)
        entries = [effect for effect in effects if isinstance(effect, Record)]
        return [e for e in effects if not isinstance(e, Record)] + list(entries)

    around(patch, Coordinator, "take", take)


@mutant
def level_restart(patch: pytest.MonkeyPatch) -> None:
    """A restarted coordinator waits for events instead of acting on the states it is told."""

    def without_members(original: Any, self: FactIntake, fact: Any) -> Any:
        if not self._state.is_gathering:
            return original(self, fact)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(JournalState, "members_on", lambda *_: ())
            return original(self, fact)

    def told(original: Any, self: FactIntake, state: Any) -> Any:
        if not self._state.is_gathering:
            return original(self, state)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(MemberStatus, "look_at", lambda *_: None)
            return original(self, state)

    def has_gathered(original: Any, self: Coordinator) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(MemberStatus, "look_at_all", lambda *_: None)
            return original(self)

    around(patch, FactIntake, "_connected", without_members)
    around(patch, FactIntake, "_node_dead", without_members)
    around(patch, FactIntake, "_told", told)
    around(patch, Coordinator, "_has_gathered", has_gathered)


@mutant
def incarnations(patch: pytest.MonkeyPatch) -> None:
    """A name started again is the same worker."""

    def is_fenced(journal: JournalState, member: Member) -> bool:
        return any(fenced.name == member.name for fenced in journal.fenced)

    def note(original: Any, journal: JournalState, entry: Any) -> None:
        original(journal, entry)
        if isinstance(entry, Started):
            for member in [m for m in journal.fenced if m.name == entry.member.name]:
                del journal.fenced[member]

    patch.setattr(JournalState, "is_fenced", is_fenced)
    around(patch, JournalState, "note", note)
    patch.setattr(
        WorkerPosition, "is_in", lambda worker, order: worker.member.name in order.incarnations
    )


# Planned changes


@mutant
def one_planned(patch: pytest.MonkeyPatch) -> None:
    """The next change is ordered before all have given the last one up."""

    def follow(original: Any, state: CoordinatorState) -> None:
        unvoided, state.status.unvoided = state.status.unvoided, {}
        original(state)
        state.status.unvoided = state.status.unvoided or unvoided

    around(patch, coordinator, "follow_change", follow)


@mutant
def heard_first(patch: pytest.MonkeyPatch) -> None:
    """A change is ordered while a member has not been seen in the last order."""

    def is_quiet(original: Any, state: CoordinatorState) -> bool:
        unheard, state.status.unheard = state.status.unheard, {}
        try:
            return bool(original(state))
        finally:
            state.status.unheard = unheard

    around(patch, planned, "_is_quiet", is_quiet)


@mutant
def late_void(patch: pytest.MonkeyPatch) -> None:
    """A vote that was given is taken back."""

    def on_void(position: WorkerPosition, number: int) -> None:
        position._void_asked = max(position._void_asked, number)
        position._confirm_void()

    patch.setattr(WorkerPosition, "on_void", on_void)


@mutant
def keep_before(patch: pytest.MonkeyPatch) -> None:
    """The state before a change is thrown away when the change is entered."""

    def change(original: Any, position: WorkerPosition, *args: Any) -> None:
        original(position, *args)
        position.before = 0

    around(patch, WorkerPosition, "_change", change)


# A worker's step and its reports


@mutant
def confirm(patch: pytest.MonkeyPatch) -> None:
    """The agreement is entered when the own share of all exchanges is handed in."""

    def may_agree(step: Step) -> bool:
        done = step.share.done if step.share is not None else ()
        return all(slot in step._entered or slot in done for slot in step.slots)

    patch.setattr(Step, "_may_agree", may_agree)


@mutant
def living_level(patch: pytest.MonkeyPatch) -> None:
    """A group lives on wherever a member names it, however far the others got in it."""
    patch.setattr(
        rounds, "living_groups", lambda reports: {name for r in reports for name in r.groups}
    )


@mutant
def freeze(patch: pytest.MonkeyPatch) -> None:
    """A worker that has reported goes on in the old epoch."""

    def received(machine: WorkerMachine, message: Any) -> list[Any]:
        machine.position.on_freeze(message)
        machine.position.is_frozen = False
        return [machine._state()]

    patch.setattr(WorkerMachine, "_freeze_received", received)


@mutant
def exact_sets(patch: pytest.MonkeyPatch) -> None:
    """A micro-batch counts as done when its last addend is."""

    def sums(original: Any, record: StepRecord) -> Any:
        found = original(record)
        if not found:
            return found
        whole = frozenset.intersection(*(frozenset(numbers) for numbers in found.values()))
        return dict.fromkeys(found, tuple(sorted(whole)))

    around(patch, StepRecord, "sums", sums)


# Joiners


@mutant
def joiner_versions(patch: pytest.MonkeyPatch) -> None:
    """What has arrived at a joiner counts as current."""

    def updated(units: JoinerParts[Any], unit: int, step: int) -> bool:
        if unit in units._versions:
            units._versions[unit] = step + 1
        return unit in units._versions

    patch.setattr(JoinerParts, "updated", updated)
    patch.setattr(
        JoinerParts, "is_current", lambda units, _: all(u in units._versions for u in units.parts)
    )
    patch.setattr(
        SourceFeed,
        "is_current",
        lambda feed, _: feed.is_open and all(unit in feed._held for unit in feed.units),
    )


@mutant
def discard_joiners(patch: pytest.MonkeyPatch) -> None:
    """A recovery leaves a joiner what it has fetched, of whatever history."""

    def arrived(units: JoinerParts[Any], unit: int, version: int, _: int) -> bool:
        units._versions[unit] = version
        return True

    def close(original: Any, joining: Joining, **named: Any) -> None:
        parts, state = joining.parts, joining.state
        original(joining, **named)
        joining.parts, joining.state = parts, state

    patch.setattr(JoinerParts, "arrived", arrived)
    patch.setattr(JoinerParts, "forget", lambda _: None)
    around(patch, Joining, "close", close)


# Decisions that were once made outside the machine


@mutant
def wrong_worker(patch: pytest.MonkeyPatch) -> None:
    """A hang is blamed on another worker than the one that hangs."""

    def look(original: Any, monitor: HangMonitor, now_ms: int) -> Looked:
        found = original(monitor, now_ms)
        members = sorted(monitor._roster.states)
        hung = {members[members.index(m) - 1]: why for m, why in found.hung.items()}
        return Looked(hung, found.lost_nodes, found.standstill)

    around(patch, HangMonitor, "look", look)


@mutant
def own_pauses(patch: pytest.MonkeyPatch) -> None:
    """Time in which the coordinator was stopped counts like any other."""
    patch.setattr(Coordinator, "_own_time_ms", lambda _, now_ms: now_ms)


@mutant
def no_waiting(patch: pytest.MonkeyPatch) -> None:
    """A job is given up although nothing could move: it waits for a node, or for a last holder."""
    patch.setattr(giving_up, "can_only_wait", lambda _: False)


@mutant
def partial_restore(patch: pytest.MonkeyPatch) -> None:
    """A version of which some parts are missing is restored."""

    def statuses(original: Any, *args: Any) -> Any:
        return [msgspec.structs.replace(found, is_complete=True) for found in original(*args)]

    around(patch, SnapshotIndex, "statuses", statuses)


@mutant
def older_lineage(patch: pytest.MonkeyPatch) -> None:
    """A snapshot of a history that was given up is preferred."""

    def newest(original: Any, self: SnapshotCoordination, *before: Any) -> Any:
        whole = [s.version for s in self._index.statuses(self._journal.plans) if s.is_complete]
        old = [v for v in whole if v.agreed_in < self._journal.epoch_of_step(v.step - 1)]
        return max(old, key=lambda version: version.step) if old else original(self, *before)

    around(patch, SnapshotCoordination, "newest_loadable", newest)


@mutant
def entered_twice(patch: pytest.MonkeyPatch) -> None:
    """A change that all members have entered is entered again."""

    def record(original: Any, state: CoordinatorState, entry: Any) -> None:
        original(state, entry)
        if isinstance(entry, EnteredByAll):
            original(state, entry)

    around(patch, CoordinatorState, "record", record)


@mutant
def forgotten_stop(patch: pytest.MonkeyPatch) -> None:
    """After a recovery or a restore the members are not told that the job stops."""

    def due(original: Any, sender: Sender, *args: Any) -> Any:
        message = original(sender, *args)
        last = sender._state.journal.last
        is_lost = isinstance(message, Stop) and last is not None and last.kind != "change"
        return None if is_lost and last.kind != "start" else message

    around(patch, Sender, "_due", due)


@mutant
def late_death(patch: pytest.MonkeyPatch) -> None:
    """The death of an agent counts for the one of its node that has come since."""
    patch.setattr(Roster, "is_replaced", lambda *_: False)


def first_seed(name: str, num_seeds: int = 500) -> int | None:
    """The first seed that catches a mutant."""
    with pytest.MonkeyPatch.context() as patch:
        plant(name, patch)
        return next((seed for seed in range(num_seeds) if run_seed(seed).broken), None)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MUTANTS:
        print(chosen, first_seed(chosen))
