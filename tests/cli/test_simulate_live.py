"""A run and the simulator side by side, from a run directory."""

import json
from datetime import UTC, datetime

import pytest

from holdfast.cli.main import main
from holdfast.cli.simulate_live import compare_run
from holdfast.errors import HoldfastError
from holdfast.observe.events import FaultInjected, PlanChanged, StepDone, WorkerLost
from holdfast.observe.journal import Journal
from holdfast.plan.build import regular_plan
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.profile import Profile, UnitCost, format_profile
from holdfast.plan.text import format_plan
from holdfast.plan.timeline import evaluate
from holdfast.runtime.config.job_file import JobConfig, format_job
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.config.parallel_sections import ParallelSection
from holdfast.runtime.config.recovery_sections import RecoverySection

UNITS = llama_units(llama_shape("llama-tiny"))
PLAN = regular_plan(UNITS, replicas=3, stages=2, micro_batches=12, devices_per_node=2)
STEP = evaluate(PLAN, Profile(unit={u.name: UnitCost(1, 1, 1) for u in UNITS})).iteration_time
PROFILE = Profile(unit={unit.name: UnitCost(*3 * [1 / STEP]) for unit in UNITS})
"""A step takes a second."""
FASTER_S = evaluate(
    regular_plan(UNITS, replicas=6, stages=1, micro_batches=12), PROFILE
).iteration_time
"""Of the plan that is entered when all are back: it has no bubbles."""


def done(number):
    return StepDone(
        step=number,
        epoch=1,
        loss=1.0,
        norm=1.0,
        tokens=1,
        tokens_per_s=1.0,
        step_time_s=1.0,
        learning_rate=0.1,
        applied=True,
    )


def back():
    return PlanChanged(
        epoch=3,
        step=40,
        shape="",
        num_workers=6,
        joining=("n1.g0", "n1.g1"),
        leaving=(),
        stall_s=0.0,
        bytes_moved=0,
        groups_kept=0,
        groups_made=0,
        file="",
    )


@pytest.fixture
def run_dir(tmp_path):
    """A second a step; for half a minute a node is away, and steps take 1.25 s; then less than
    before, as the planner has found a plan that the job did not begin with.
    """
    (tmp_path / "plans").mkdir()
    config = JobConfig(
        job=JobSection(steps=100),
        parallel=ParallelSection(replicas=3, stages=2, devices_per_node=2),
        recovery=RecoverySection(restart_nodes=True, restart_nodes_after_s=30.0),
    )
    (tmp_path / "job.toml").write_text(format_job(config))
    (tmp_path / "plans/given-0.toml").write_text(format_plan(PLAN))
    (tmp_path / "profile.json").write_text(format_profile(PROFILE))
    clock = [0.0]
    journal = Journal(
        tmp_path / "journal.jsonl",
        tmp_path / "metrics.jsonl",
        now=lambda: datetime.fromtimestamp(clock[0], UTC).isoformat(timespec="milliseconds"),
    )
    timed = [(float(second), done(second)) for second in range(1, 31)]
    timed.append((30.0, FaultInjected(fault="NODE_LOSS", target="n1", step=30)))
    timed += [
        (30.0, WorkerLost(worker=f"n1.g{g}", incarnation=1, kind="node lost")) for g in range(2)
    ]
    timed += [(30.0 + 1.25 * number, done(30 + number)) for number in range(1, 25)]
    timed.append((60.0, back()))
    timed += [(60.0 + FASTER_S * number, done(54 + number)) for number in range(1, 31)]
    for at_s, event in timed:
        clock[0] = 1e9 + at_s
        journal.write(event)
    return tmp_path


def test_the_two_agree_where_the_run_is_as_the_model(run_dir):
    found = compare_run(run_dir)
    seconds = 59 + 30 * FASTER_S
    assert (found.steps, found.faults) == (84, 1)
    assert found.seconds == pytest.approx(seconds, abs=1e-3)
    assert found.live == pytest.approx(83 / seconds, rel=1e-4)
    assert found.costs.step_ms == pytest.approx(1000)
    assert abs(found.difference) < 0.03


def test_what_is_said(run_dir, capsys):
    assert main(["simulate", "--run", str(run_dir)]) == 0
    live = 100 * 83 / (59 + 30 * FASTER_S)
    assert f"relative to the undisturbed job: {live:.1f} % in the run" in capsys.readouterr().out
    assert main(["simulate", "--run", str(run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert abs(found["difference"]) < 0.03


def test_a_run_that_left_no_profile_is_refused(run_dir):
    (run_dir / "profile.json").unlink()
    with pytest.raises(HoldfastError, match=r"has no profile\.json: the run has not ended"):
        compare_run(run_dir)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(HoldfastError, match="is no run directory"):
        compare_run(tmp_path)
