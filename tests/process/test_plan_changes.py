"""Plans that a running job goes over to, with real processes: kills while it does, and spares.

A group of tensor ranks shrinks, a stage moves to another worker, a group grows. A source, a joiner
and the coordinator are killed meanwhile; the run equals the undisturbed one.
"""

from itertools import product

import msgspec
import pytest

from holdfast.control.worker_reports import Planned
from holdfast.plan.plan import Plan
from holdfast.runtime.config.model_source import model_units
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.faults.kinds import Fault
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import make_job, prepare_job
from support.chaos import check_equal, left_behind, make_config, without_planner
from support.engine_plans import make_plan, make_stage
from support.sample import some

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

NUM_STEPS = 24
AT_STEP = 6


def on_own_nodes(plan):
    """A worker per node."""
    names = {name: f"n{name.partition('.g')[2]}.g0" for name in plan.workers}
    stages = tuple(
        msgspec.structs.replace(stage, workers=tuple(names[w] for w in stage.workers))
        for stage in plan.stages
    )
    return Plan(plan.units, stages, plan.routes, plan.schedule)


def groups(units, *members):
    """A replica per group."""
    stages = [make_stage(r, 0, 0, len(units), *numbers) for r, numbers in enumerate(members)]
    return on_own_nodes(make_plan(units, stages, [3, 3]))


def pipelines(units, cut, *members):
    """A replica per pair, its units cut between the two."""
    stages = []
    for replica, (first, second) in enumerate(members):
        stages.append(make_stage(replica, 0, 0, cut, first))
        stages.append(make_stage(replica, 1, cut, len(units), second))
    return on_own_nodes(make_plan(units, stages, [3, 3]))


def plans(units):
    """By name: from, to. Worker n2.g0 gives state, n4.g0 joins."""
    return {
        "shrink": (groups(units, (0, 1), (2, 3)), groups(units, (0,), (2, 3))),
        "stage move": (pipelines(units, 2, (0, 1), (2, 3)), pipelines(units, 3, (0, 4), (2, 3))),
        "growth": (groups(units, (0, 1), (2, 3)), groups(units, (0, 1, 4), (2, 3))),
        "shrink around a joiner": (
            groups(units, (0, 1, 5), (2, 3)),
            groups(units, (0, 4), (2, 3)),
        ),
    }


@pytest.fixture
def survive(fork_server, undisturbed, tmp_path):
    """Runs a job that goes over from one plan to the other, with these faults."""

    def run(name, *faults):
        config = make_config({}, NUM_STEPS, str(tmp_path / "run"), faults=faults)
        config = without_planner(config)
        before, after = plans(model_units(config))[name]
        job = make_job(config, [Planned(0, before), Planned(AT_STEP, after)])
        result = run_job(job, fork_server=fork_server)
        check_equal(undisturbed(NUM_STEPS), result, str([fault.kind for fault in faults]))
        assert left_behind(fork_server, tmp_path) == []
        return result.report

    return run


def kill(target, phase, at_step=AT_STEP):
    return Fault(kind="SIGKILL", target=target, at_step=at_step, phase=phase)


CHANGES = ("shrink", "stage move", "growth")


@pytest.mark.parametrize(
    ("change", "phase"),
    some(
        product(CHANGES, ["switch", "entered"]), [("shrink", "switch"), ("stage move", "entered")]
    ),
)
def test_a_source_is_killed(survive, change, phase):
    report = survive(change, kill("n2.g0", phase))
    assert any("n2.g0" in recovery.lost for recovery in report.recoveries)


@pytest.mark.parametrize(
    ("change", "phase"),
    some(
        product(["shrink around a joiner", "stage move", "growth"], ["join", "entered"]),
        [("shrink around a joiner", "entered")],
    ),
)
def test_a_joiner_is_killed(survive, change, phase):
    survive(change, kill("n4.g0", phase))


@pytest.mark.parametrize("change", some(CHANGES, ["stage move"]))
def test_the_coordinator_is_killed(survive, change):
    survive(
        change,
        Fault(kind="COORDINATOR_LOSS", at_step=AT_STEP - 1),
        Fault(kind="COORDINATOR_LOSS", at_step=AT_STEP + 1),
    )


@pytest.mark.parametrize("phase", some(["", "join", "entered"], [""]))
def test_a_spare_takes_the_place_of_a_worker_that_does_not_come_back(
    fork_server, undisturbed, tmp_path, phase
):
    """Also one that is killed while it does, as it can be started again."""
    faults = [Fault(kind="NODE_LOSS", target="n2", at_step=4)]
    if phase:
        faults.append(kill("n4.g0", phase, 0))
    config = make_config(
        {"replicas": 2, "stages": 2}, 60, str(tmp_path / "run"), faults=tuple(faults)
    )
    config = msgspec.structs.replace(
        config,
        job=msgspec.structs.replace(config.job, spares=1),
        recovery=msgspec.structs.replace(config.recovery, restart_nodes=False),
    )
    result = run_job(prepare_job(config), fork_server=fork_server)
    check_equal(undisturbed(60), result, phase)
    assert left_behind(fork_server, tmp_path) == []
    assert result.changes[-1].num_workers == 4


def test_a_joiner_takes_its_bulk_from_snapshots(fork_server, undisturbed, tmp_path):
    """Of the 60 steps the first are enough for a snapshot to be there before the worker dies."""
    faults = (kill("n3.g0", "forward", 12),)
    shape = {"replicas": 2, "stages": 2}
    snapshot = SnapshotSection(every=1)
    config = make_config(shape, 60, str(tmp_path / "run"), faults=faults, snapshot=snapshot)
    result = run_job(prepare_job(config), fork_server=fork_server)
    check_equal(undisturbed(60), result, "bulk from snapshots")
    assert left_behind(fork_server, tmp_path) == []
    joined = [change for change in result.changes if "n3.g0" in change.joining]
    assert joined
    assert joined[-1].bytes_from_memory > 0
