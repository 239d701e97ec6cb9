"""The report of a disturbed run, compared with what was seen of it from outside."""

import json
import os
import random
import time

import pytest

from holdfast.observe.report import PRODUCTIVE
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.chaos import check_equal, left_behind, make_config
from support.observer import Observer
from support.sample import some
from support.time_check import check_seen, stamped_lines

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

NUM_STEPS = 80
SHAPES = ({"replicas": 2, "stages": 2}, {"replicas": 3, "stages": 1}, {"replicas": 2, "stages": 1})
STALL_S = 0.05
KIND_OF = {"worker": "killed", "node": "node lost", "coordinator": "coordinator lost"}


def run_observed(fork_server, folder, calm, seed: int, num_kills: int) -> dict[str, float]:
    source = random.Random(seed)
    shape = source.choice(SHAPES)
    observer = Observer(
        fork_server,
        source,
        every_steps=NUM_STEPS // (num_kills + 1),
        num_kills=num_kills,
        may_kill=("worker", "worker", "node", "coordinator"),
    )
    config = make_config(
        shape, NUM_STEPS, str(folder / "run"), snapshot=SnapshotSection(every=1, max_cost=0)
    )
    called_s = time.time()
    try:
        result = run_job(prepare_job(config), on_event=observer, fork_server=fork_server)
    finally:
        observer.join()
    assert left_behind(fork_server, folder) == []
    check_equal(calm, result, f"seed {seed}")
    run_dir = folder / "run"
    report = json.loads((run_dir / "report.json").read_text())
    parts = check_seen(run_dir, called_s, observer.began_s, observer.ended_s)
    lines = stamped_lines(run_dir / "metrics.jsonl")
    late = observer.correct([(at_s, fields["step"]) for at_s, fields in lines])
    began_s = next(at_s for at_s, _ in stamped_lines(run_dir / "journal.jsonl"))
    worst = compare(report, observer, began_s, f"seed {seed}: {shape}, {observer.killed}")
    return {"parts": parts, "late": late, "stall": worst}


def compare(report: dict, seen: Observer, began_s: float, story: str) -> float:
    """The largest difference in a stall."""
    expected = {KIND_OF[kind]: number for kind, number in seen.kills.items()}
    assert report["failures"] == expected, f"{story}: {report['failures']}"
    assert report["steps"] == len({step for _, step in seen.steps}), story
    assert report["steps_redone"] == seen.num_again, story
    assert report["not_back"] == [] or seen.kills, story
    assert report["time_s"][PRODUCTIVE] <= report["seconds"]
    stalls = [stall_difference(incident, seen, began_s) for incident in report["incidents"]]
    worst = max(stalls, default=0.0)
    assert worst <= STALL_S, f"{story}: {stalls} of {report['incidents']}"
    return worst


def stall_difference(incident: dict, seen: Observer, began_s: float) -> float:
    """Beyond what is not known about usual steps from outside."""
    if incident["kind"] not in ("recovery", "restore"):
        return 0.0
    least_s, most_s = seen.stall_range_s(began_s, incident["at_s"], incident["over_step"])
    return max(0.0, least_s - incident["stall_s"], incident["stall_s"] - most_s)


@pytest.mark.parametrize("seed", some([1, 2], [1]))
def test_the_report_says_what_was_seen(fork_server, tmp_path, undisturbed, seed):
    run_observed(fork_server, tmp_path, undisturbed(NUM_STEPS), seed, num_kills=3)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_twenty_reports_say_what_was_seen(fork_server, tmp_path, undisturbed, capsys):
    seed = int(os.environ.get("HOLDFAST_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    with capsys.disabled():
        print(f"\nHOLDFAST_CHAOS_SEED={seed}")
    calm, worst = undisturbed(NUM_STEPS), {}
    for number in range(20):
        found = run_observed(fork_server, tmp_path / str(number), calm, seed + number, num_kills=3)
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in found.items()}
        with capsys.disabled():
            print(".", end="", flush=True)
    with capsys.disabled():
        print(
            f"20 reports: the parts add up to the wall time within {worst['parts']:.3%}, stalls "
            f"within {1000 * worst['stall']:.0f} ms; steps were heard of up to "
            f"{1000 * worst['late']:.0f} ms late"
        )
