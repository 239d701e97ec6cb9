"""The whole machine: restarts from the journal at any point, and what a restart must not do."""

import msgspec
import pytest

from holdfast.control.coordinator import PAUSED_MS, Coordinator
from holdfast.control.deadlines import CALM_MS, SHORTEST_MS
from holdfast.control.effects import (
    Disconnect,
    Finish,
    Record,
    Send,
    StepsRecorded,
    ToAllNodes,
)
from holdfast.control.facts import (
    Beat,
    NodeLost,
    PlanWanted,
    ProgressPlace,
    StopWanted,
    Tick,
    WorkerExited,
)
from holdfast.control.journal_entries import Fenced, NumberTaken, Ordered, TermBegun
from holdfast.control.worker_reports import Planned
from support.control_jobs import Job, small_plan


def rounds(job: Job) -> int:
    return sum(isinstance(entry, NumberTaken) for entry in job.journal)


def test_every_coordinator_has_a_term_of_its_own():
    job = Job().begin()
    job.restart()
    job.tick(1)
    assert [entry.term for entry in job.journal if isinstance(entry, TermBegun)] == [1, 2]
    assert job.coordinator.term == 2


def test_a_restart_alone_disturbs_no_worker():
    job = Job().begin()
    job.restart()
    job.begin()
    job.tick(5000)
    assert rounds(job) == 0
    assert job.last.number == 1


def test_a_successor_waits_for_every_worker_before_it_acts():
    job = Job(lost_after_ms=500).begin()
    job.restart()
    job.connect("n0")
    job.tick(499)
    assert not [e for e in job.journal if isinstance(e, Fenced)]
    job.tick(1)
    assert [str(e.member) for e in job.journal if isinstance(e, Fenced)] == ["n1.g0#1"]


def test_a_death_while_no_worker_looked_is_seen():
    job = Job().begin()
    del job.positions["n0.g0"]
    job.restart()
    job.begin()
    assert job.last.kind in ("recover", "change")
    assert rounds(job) == 1


@pytest.mark.parametrize("length", range(1, 10))
def test_a_successor_goes_on_from_any_entry(length):
    """The journal ends anywhere in the middle of a recovery; workers are where they are."""
    job = Job(small_plan(3)).begin()
    num_before = len(job.journal)
    member = job.member("n0.g0")
    del job.positions["n0.g0"]
    effects = job.coordinator.take(WorkerExited(member, "SIGKILL"), 0)
    sent = 0
    for effect in effects:
        if isinstance(effect, Record):
            if len(job.journal) - num_before == length:
                break
            job.journal.append(effect.entry)
        elif isinstance(effect, Send):
            sent += 1
            job._deliver(job.positions[effect.member.name], effect.message)
    job.restart()
    for node in list(job.places):
        job.connect(node)
    assert job.positions["n1.g0"].epoch == job.positions["n2.g0"].epoch > 1
    assert not job.positions["n1.g0"].is_frozen


def test_the_end_is_known_to_a_successor():
    job = Job().begin()
    job.take(StopWanted())
    for name, position in job.positions.items():
        position.done()
        job.tell(name)
    assert [type(e) for e in job.effects].count(Finish) == 1
    job.restart()
    job.begin()
    assert job.coordinator.is_over
    assert [e.version for e in job.effects if isinstance(e, Finish)] == [0, 0]


def test_effects_are_sent_after_what_they_depend_on():
    job = Job()
    job.begin()
    seen: list[int] = []
    for effect in job.effects:
        if isinstance(effect, Record) and isinstance(effect.entry, Ordered):
            seen.append(effect.entry.order.number)
        if isinstance(effect, Send) and hasattr(effect.message, "number"):
            assert effect.message.number in seen


def test_time_alone_decides_nothing_in_a_healthy_job():
    job = Job().begin()
    before = len(job.journal)
    for _ in range(20):
        job.tick(10_000)
    assert len(job.journal) == before


def test_a_plan_for_another_model_is_refused():
    job = Job().begin()
    job.take(PlanWanted(small_plan(2, 2), "mistake"))
    assert job.said[-1] == "a plan is refused: it is for another model"
    assert job.coordinator._state.journal.wanted == job.plan


def test_so_is_one_that_could_never_be_entered():
    job = Job().begin()
    job.take(PlanWanted(small_plan(1), "mistake"))
    assert job.said[-1] == "a plan is refused: 1 micro-batches a step, not 2"
    wide = small_plan(1, tensor=2, micro_batches=2)
    stages = tuple(msgspec.structs.replace(s, axes=(("context", 2),)) for s in wide.stages)
    job.take(PlanWanted(msgspec.structs.replace(wide, stages=stages), "mistake"))
    assert "context degree 2" in job.said[-1]
    assert job.coordinator._state.journal.wanted == job.plan


def test_facts_of_unknown_nodes_are_harmless():
    coordinator = Coordinator(Job().settings)
    assert [type(e).__name__ for e in coordinator.take(Tick(), 0)] == ["Record"]


def test_a_node_that_is_connected_and_silent_is_disconnected_later():
    job = Job(lost_after_ms=10_000).begin()
    for _ in range(100):
        job.tick(101)
        job.take(Beat(node="n1", sent_ms=0))
    assert [e.node for e in job.effects if isinstance(e, Disconnect)] == ["n0"]


def fenced(job: Job) -> list[str]:
    return [str(entry.member) for entry in job.journal if isinstance(entry, Fenced)]


def test_no_silence_counts_while_the_coordinator_is_paused():
    job = Job(lost_after_ms=10_000).begin()
    job.take(NodeLost("n1", "the connection is closed"))
    for _ in range(3):
        job.pause(600_000)
    assert job.said.count("the coordinator was paused for 600.0 s, which count against no worker")
    assert not fenced(job)
    job.pass_time(11_000)
    assert fenced(job) == ["n1.g0#1"]


def test_an_answer_may_come_in_a_pause():
    """It is read after the first look."""
    job = Job(small_plan(3), answer_ms=300).begin()
    job.is_held = lambda name: name == "n2.g0"
    job.positions["n0.g0"].on_broken("no route")
    job.tell("n0.g0")
    job.pass_time(100, 50)
    assert rounds(job) == 1
    job.pause(60_000)
    assert not fenced(job)
    job.pass_time(300, 50)
    assert fenced(job) == ["n2.g0#1"]


def test_a_pause_does_not_bring_a_verdict_that_was_due_next():
    job = Job(lost_after_ms=250).begin()
    job.restart()
    job.connect("n0")
    job.tick(100)
    job.pause(60_000)
    assert not fenced(job)
    job.connect("n1")
    job.pass_time(1000, 50)
    assert not fenced(job)


def test_a_look_that_is_a_little_late_is_no_pause():
    job = Job(lost_after_ms=1000).begin()
    job.take(NodeLost("n1", "the connection is closed"))
    job.pause(PAUSED_MS)
    assert not any("paused" in line for line in job.said)
    assert fenced(job) == ["n1.g0#1"]


def test_after_a_pause_it_is_woken_by_the_clock_of_its_process():
    job = Job().begin()
    job.pause(60_000)
    assert job.coordinator.next_deadline_ms(job.now_ms) == job.now_ms + CALM_MS


def test_a_worker_that_is_stopped_for_long_is_replaced():
    job = Job(hang_floor_ms=2000).begin()
    stopped = ProgressPlace(3, 0, 0, 2001, is_stopped=True)
    job.now_ms += 101
    job.take(Beat(node="n0", sent_ms=0, places={"n0.g0": stopped}))
    assert [str(e.member) for e in job.journal if isinstance(e, Fenced)] == ["n0.g0#1"]


def test_all_workers_that_are_stopped_at_once_are_spared_and_go_on():
    job = Job(hang_floor_ms=2000).begin()
    for silent_ms in (1000, 2001):
        job.now_ms += 1001
        for node in ("n0", "n1"):
            place = ProgressPlace(3, 0, 0, silent_ms, is_stopped=True)
            job.take(Beat(node=node, sent_ms=0, places={f"{node}.g0": place}))
    job.tick(101)
    assert not [e for e in job.journal if isinstance(e, Fenced)]
    assert any("is not given up" in line for line in job.said)
    for node in ("n0", "n1"):
        place = ProgressPlace(3, 0, 0, 0)
        job.take(Beat(node=node, sent_ms=0, places={f"{node}.g0": place}))
    assert not job.coordinator._state.suspected
    assert rounds(job) == 0


def test_steps_are_counted_and_agents_are_told():
    job = Job().begin()
    job.complete()
    assert job.coordinator.view.next_step == 1
    job.tick(101)
    assert ToAllNodes(StepsRecorded(step=1)) in job.effects


def test_the_job_files_changes_are_wanted_one_after_the_other():
    plans = (Planned(0, small_plan(2)), Planned(5, small_plan(1, micro_batches=2)))
    job = Job(plans[0].plan, changes=plans).begin()
    assert job.coordinator.view.wanted == plans[1].plan
    assert job.coordinator.view.change == 2


def test_the_next_look_is_soon_where_something_waits_for_a_time():
    job = Job(settle_ms=50, answer_ms=300).begin()
    job.tick(1000)
    deadline_ms = job.coordinator.next_deadline_ms
    assert deadline_ms(1000) == 1000 + CALM_MS
    job.is_held = lambda name: True
    job.positions["n0.g0"].on_broken("no route")
    job.tell("n0.g0")
    assert deadline_ms(1000) == 1050
    job.tick(50)
    assert deadline_ms(1200) == 1350
    assert deadline_ms(1345) == 1345 + SHORTEST_MS
