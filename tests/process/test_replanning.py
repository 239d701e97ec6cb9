"""Reflex, then reason, with real processes: a job with a loss for good goes on under a better plan,
and equals the undisturbed run.
"""

import os
import signal
from contextlib import suppress

import msgspec
import psutil
import pytest

from holdfast.cli.plan_replay import replay_decision
from holdfast.observe.events import Event, PlanConsidered, StepDone
from holdfast.observe.journal import read_journal
from holdfast.observe.run_directory import JOURNAL
from holdfast.plan.copies import num_copies
from holdfast.plan.text import parse_plan
from holdfast.runtime.config.emulate_sections import EmulateSection
from holdfast.runtime.config.recovery_sections import RecoverySection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.chaos import check_equal, left_behind, make_config
from support.outside import processes

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

NUM_STEPS = 60
"""The planner is asked beside them, and its plan is entered."""
UNIT_MS = 4.0
TENSOR = {"replicas": 2, "tensor": 2}


@pytest.fixture
def survive(fork_server, undisturbed, tmp_path):
    """Runs a job to its end; it must equal the undisturbed one and leave nothing behind."""

    def run(shape, fault, recovery, on_event=None, num_steps=NUM_STEPS, **more):
        config = make_config(shape, num_steps, str(tmp_path / "run"), faults=(fault,), **more)
        config = msgspec.structs.replace(config, recovery=recovery)
        result = run_job(prepare_job(config), on_event=on_event, fork_server=fork_server)
        check_equal(undisturbed(num_steps), result, fault.kind)
        assert left_behind(fork_server, tmp_path) == []
        return [e for e in read_journal(tmp_path / "run" / JOURNAL) if isinstance(e, Event)]

    return run


def last_plan(events, folder):
    changed = [event for event in events if hasattr(event, "file") and hasattr(event, "leaving")]
    return parse_plan((folder / "run" / changed[-1].file).read_text())


def test_a_tensor_group_shrinks_instead_of_leaving_its_healthy_half_idle(survive, tmp_path, capsys):
    events = survive(
        TENSOR | {"devices_per_node": 4},
        Fault(kind="SIGKILL", target="n0.g1", at_step=8),
        RecoverySection(max_restarts=0),
        # Which plan is best depends on what things take, and a tiny model's times are mostly noise.
        emulate=EmulateSection(unit_ms=UNIT_MS),
    )
    plan = last_plan(events, tmp_path)
    assert sorted(plan.workers) == ["n0.g0", "n0.g2", "n0.g3"]
    considered = [event for event in events if isinstance(event, PlanConsidered)]
    # Others may follow: only now it is measured what a group of one costs.
    entered = next(event for event in considered if event.entered)
    assert entered.strategy == "shrink"
    assert entered.asked == "n0.g1 of the job's own plan is not there"
    assert entered.runner_ups
    for event in considered:
        assert replay_decision(tmp_path / "run", event.decision, as_json=False) == 0
    assert "equal" in capsys.readouterr().out
    (tmp_path / "run" / entered.file).write_text("{}")
    with pytest.raises(Exception, match="was changed since"):
        replay_decision(tmp_path / "run", entered.decision, as_json=False)


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_job_that_holds_every_stage_twice_still_does_under_its_new_plan(
    survive, tmp_path, tensor
):
    events = survive(
        {"stages": 3, "tensor": tensor, "redundancy": True, "devices_per_node": 6},
        Fault(kind="SIGKILL", target="n0.g1", at_step=8),
        RecoverySection(max_restarts=0),
    )
    assert any(isinstance(event, PlanConsidered) and event.entered for event in events)
    assert num_copies(last_plan(events, tmp_path)) >= 2


def test_a_job_that_nothing_happens_to_does_not_pay_for_the_planner(fork_server, tmp_path):
    started: list[int] = []
    seen: list[int] = []

    def hear(event: Event) -> None:
        coordinator = processes(fork_server).get("coordinator", 0)
        if isinstance(event, StepDone) and coordinator:
            seen.append(event.step)
            started.extend(child.pid for child in psutil.Process(coordinator).children())

    run_job(
        prepare_job(make_config({"replicas": 2}, 8, str(tmp_path / "run"))),
        on_event=hear,
        fork_server=fork_server,
    )
    assert seen
    assert started == []


@pytest.mark.chaos
def test_reroute_leaves_the_plan_as_it_is(survive):
    events = survive(
        TENSOR | {"devices_per_node": 4},
        Fault(kind="SIGKILL", target="n0.g1", at_step=8),
        RecoverySection(max_restarts=0, plan="reroute"),
        num_steps=24,
    )
    assert not [event for event in events if isinstance(event, PlanConsidered)]
    assert [event.num_workers for event in events if hasattr(event, "num_workers")][-1] == 2


@pytest.mark.chaos
def test_the_coordinator_is_killed_while_the_planner_is_asked(survive, fork_server, tmp_path):
    """The planner is stopped, so that the question stays open; the successor asks its own."""
    stopped: list[int] = []
    killed: list[int] = []

    def hear(event: Event) -> None:
        coordinator = processes(fork_server).get("coordinator", 0)
        if not isinstance(event, StepDone) or not coordinator or killed:
            return
        # The question has started it, and what it imports takes longer than a step.
        for child in psutil.Process(coordinator).children():
            os.kill(child.pid, signal.SIGSTOP)
            stopped.append(child.pid)
            os.kill(coordinator, signal.SIGKILL)
            killed.append(coordinator)

    recovery = RecoverySection(restart_nodes=False, max_restarts=5)
    fault = Fault(kind="NODE_LOSS", target="n1", at_step=12)
    try:
        events = survive(TENSOR, fault, recovery, hear, emulate=EmulateSection(unit_ms=UNIT_MS))
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert stopped
    assert killed
    assert sorted(last_plan(events, tmp_path).workers) == ["n0.g0", "n2.g0", "n3.g0"]
    (entered,) = [e for e in events if isinstance(e, PlanConsidered) and e.entered]
    assert entered.decision >= 1
