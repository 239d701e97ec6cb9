"""A thousand steps with a snapshot of each: nothing grows, and nothing is left."""

import os
import statistics
from collections import Counter

import psutil
import pytest

from holdfast.observe.events import CheckpointWritten, StepDone, WorkersReady
from holdfast.runtime.config.recovery_sections import SnapshotSection
from holdfast.runtime.launch.launcher import run_job
from holdfast.runtime.launch.prepare import prepare_job
from support.chaos import left_behind, make_config, shared_memory, without_planner

NUM_STEPS = 1000
EVERY_STEPS = 10
"""Between two looks at the processes."""
SLACK_BYTES = 2 * 2**20
"""Per process: less than 4 kB a step. (torch's own allocators take a little for long.)"""

SLACK = {"descriptors": 4}
"""An aide has two arenas open while it copies."""


class Watch:
    """(OnEvent) What the processes of a job have, from time to time."""

    def __init__(self, fork_server, folder):
        self._fork_server, self._folder = fork_server, folder
        self._workers = ()
        self.samples = []
        self.num_written = 0

    def __call__(self, event):
        match event:
            case WorkersReady(pids=pids):
                self._workers = tuple(pids.values())
            case StepDone(step=step) if step % EVERY_STEPS == 0:
                self.samples.append(self._look())
            case CheckpointWritten(error=""):
                self.num_written += 1

    def _look(self):
        found = Counter()
        for role, process in self._processes():
            found[f"number of {role}"] += 1
            found["descriptors"] += process.num_fds()
            if role != "aides":
                found[f"bytes of {role}"] += process.memory_info().rss
        found["shared bytes"] = sum(map(os.path.getsize, shared_memory(self._folder)))
        return found

    def _processes(self):
        """Aides copy and write: what they map changes all the time."""
        for process in psutil.Process(self._fork_server.light.pid).children():
            yield "agents", process
        for process in psutil.Process(self._fork_server.pid).children():
            yield "workers" if process.pid in self._workers else "aides", process

    def slack(self, key):
        """What may be more at the end than in the middle."""
        if key.startswith("bytes of"):
            return SLACK_BYTES * max(
                sample[key.replace("bytes", "number")] for sample in self.samples
            )
        return SLACK.get(key, 0)

    def quarter(self, number, key):
        """The median of one, counted from 0."""
        size = len(self.samples) // 4
        return statistics.median(s[key] for s in self.samples[number * size : (number + 1) * size])


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", [{"stages": 2}, {"replicas": 2}], ids=["copies", "parity"])
def test_a_thousand_snapshots(fork_server, tmp_path, capsys, shape):
    watch = Watch(fork_server, tmp_path)
    snapshot = SnapshotSection(every=1, max_cost=0, persist_every_steps=100)
    # Workers hold more under another plan: that would look as if something had grown.
    config = make_config(shape, NUM_STEPS, str(tmp_path / "run"), snapshot=snapshot)
    config = without_planner(config)
    result = run_job(prepare_job(config), on_event=watch, fork_server=fork_server)
    assert result.report.outcome == "finished"
    assert result.report.restores == ()
    assert watch.num_written >= 5
    told = {}
    for key in watch.samples[0]:
        before, after = watch.quarter(1, key), watch.quarter(3, key)
        told[key] = (before, after)
        slack = watch.slack(key)
        assert after <= before + slack, f"{key}: {before} in the second quarter, {after} at the end"
    assert left_behind(fork_server, tmp_path) == []
    with capsys.disabled():
        grown = ", ".join(
            f"{key} {before:.0f} -> {after:.0f}" for key, (before, after) in told.items()
        )
        print(f"\n{NUM_STEPS} steps, {watch.num_written} checkpoints: {grown}")
