"""The report of a disturbed run, compared with what was seen of it from outside."""

import json
import os
import random

import pytest

from holdfast.observe.report import PRODUCTIVE
from holdfast.runtime.config.job_file import SnapshotSection
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.chaos import check_equal, left_behind, make_config
from support.observer import Observer

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

NUM_STEPS = 80
SHAPES = ({"replicas": 2, "stages": 2}, {"replicas": 3, "stages": 1}, {"replicas": 2, "stages": 1})
STALL_S = 0.05
TIME_SHARE = 0.005
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
    try:
        result = run_job(prepare_job(config), on_event=observer, fork_server=fork_server)
    finally:
        observer.join()
    assert left_behind(fork_server, folder) == []
    check_equal(calm, result, f"seed {seed}")
    report = json.loads((folder / "run" / "report.json").read_text())
    return compare(report, observer, f"seed {seed}: {shape}, {observer.killed}")


def compare(report: dict, seen: Observer, story: str) -> dict[str, float]:
    """The largest differences."""
    expected = {KIND_OF[kind]: number for kind, number in seen.kills.items()}
    assert report["failures"] == expected, f"{story}: {report['failures']}"
    assert report["steps"] == len({step for _, step in seen.steps}), story
    assert report["steps_redone"] == seen.num_again, story
    assert report["not_back"] == [] or seen.kills, story
    wall = abs(report["seconds"] - seen.wall_s) / seen.wall_s
    parts = abs(sum(report["time_s"].values()) - seen.wall_s) / seen.wall_s
    assert wall <= TIME_SHARE, f"{story}: {report['seconds']} s, seen {seen.wall_s} s"
    assert parts <= TIME_SHARE, f"{story}: {report['time_s']}, seen {seen.wall_s} s"
    assert report["time_s"][PRODUCTIVE] <= report["seconds"]
    stalls = [stall_difference(incident, seen) for incident in report["incidents"]]
    worst = max((abs(difference) for difference in stalls), default=0.0)
    assert worst <= STALL_S, f"{story}: {stalls} of {report['incidents']}"
    return {"wall": wall, "parts": parts, "stall": worst}


def stall_difference(incident: dict, seen: Observer) -> float:
    """Beyond what the observer itself was late by."""
    if incident["kind"] not in ("recovery", "restore"):
        return 0.0
    moments = incident["at_s"], incident["over_step"]
    difference = abs(incident["stall_s"] - seen.stall_s(*moments))
    return max(0.0, difference - seen.late_s(*moments))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_report_says_what_was_seen(fork_server, tmp_path, undisturbed, seed):
    run_observed(fork_server, tmp_path, undisturbed(NUM_STEPS), seed, num_kills=3)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_twenty_reports_say_what_was_seen(fork_server, tmp_path, undisturbed, capsys):
    seed = int(os.environ.get("HOLDFAST_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    with capsys.disabled():
        print(f"\nHOLDFAST_CHAOS_SEED={seed}")
    calm, worst = undisturbed(NUM_STEPS), {}
    for number in range(20):
        found = run_observed(fork_server, tmp_path / str(number), calm, seed + number, num_kills=3)
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in found.items()}
    with capsys.disabled():
        print(
            f"20 reports: wall time within {worst['wall']:.2%}, its parts within "
            f"{worst['parts']:.2%}, stalls within {1000 * worst['stall']:.0f} ms"
        )
