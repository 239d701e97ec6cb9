"""What a node keeps for others is copied whole, or the copy before it stays."""

import os
import socket
from pathlib import Path

import pytest

from holdfast.control.snapshots.messages import Copied, Copy
from holdfast.plan.build import regular_plan
from holdfast.runtime.agent.sidecars import run_copying
from holdfast.runtime.wire.frames import BY_WORKER, FROM_WORKER, Channel
from holdfast.runtime.wire.snapshot_messages import CopySpec
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.arena import Arena
from holdfast.snapshot.memory.peer_copies import CopyFailed, CopyKeeper
from holdfast.snapshot.share import plan_digest
from support.kept_state import JOB, KeptWorkers
from support.random_plans import make_units
from support.snapshots import random_state

PLAN = regular_plan(make_units(2), stages=2, micro_batches=2, devices_per_node=1)
DIGEST = plan_digest(PLAN)
STATES = {step: random_state(PLAN, seed=step) for step in range(1, 8)}
V2, V3 = Version(2, 1), Version(3, 1)


@pytest.fixture
def kept(tmp_path):
    kept = KeptWorkers(PLAN, tmp_path)
    kept.enter()
    kept.train({step: STATES[step] for step in range(1, 5)})
    yield kept
    kept.close()


@pytest.fixture
def keeper(kept, tmp_path):
    return CopyKeeper(JOB, "n1", tmp_path)


def copied(kept):
    return [arena.versions for arena in kept.arenas["n1"].held() if arena.worker == "n0.g0"]


def own_arena(kept):
    return next(path for path in kept.folder.iterdir() if "-n0.g0~" in path.name)


def test_a_lost_node_lives_on(kept, keeper):
    keeper.copy(V3, DIGEST)
    kept.arenas["n0"].lose()
    for worker in PLAN.workers:
        kept.load(PLAN, worker, V3, STATES[3])


def test_the_last_copy_stays_until_the_next_is_made(kept, keeper):
    keeper.copy(V2, DIGEST)
    keeper.copy(V3, DIGEST, before=V2)
    keeper.copy(V3, DIGEST, before=V2)
    assert copied(kept) == [(V2, V3)]
    with pytest.raises(CopyFailed, match="has no step 9"):
        keeper.copy(Version(9, 1), DIGEST, before=V3)
    assert copied(kept) == [(V2, V3)]


def test_what_is_overwritten_meanwhile_is_not_copied(kept, keeper, monkeypatch):
    keeper.copy(V2, DIGEST)
    whole = Arena.slot

    def go_on(arena, version):
        """The worker is four steps further as soon as the first byte is read."""
        if arena.layout.worker == "n0.g0" and not arena.layout.is_copy and version == V3:
            monkeypatch.setattr(Arena, "slot", whole)
            found = whole(arena, version)
            kept.train({step: STATES[step] for step in range(5, 8)})
            kept.train({step + 10: STATES[step] for step in range(1, 7)})
            return found
        return whole(arena, version)

    monkeypatch.setattr(Arena, "slot", go_on)
    with pytest.raises(CopyFailed):
        keeper.copy(V3, DIGEST, before=V2)
    assert copied(kept) == [(V2,)]


def test_the_process_that_copied_before_may_have_been_killed(kept, tmp_path):
    path = next(path for path in tmp_path.iterdir() if "-n0.g0@n1~" in path.name)
    Arena.open(path).begin(V2)
    CopyKeeper(JOB, "n1", tmp_path).copy(V3, DIGEST)
    assert copied(kept) == [(V3,)]


def test_an_owner_without_memory(kept, keeper):
    own_arena(kept).unlink()
    with pytest.raises(CopyFailed, match="No such file"):
        keeper.copy(V3, DIGEST)


def test_nothing_stays_mapped(kept, keeper, tmp_path):
    keeper.copy(V2, DIGEST)
    kept.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_the_life_of_such_a_process(kept, tmp_path, monkeypatch):
    priorities = []
    monkeypatch.setattr("os.setpriority", lambda *given: priorities.append(given))
    ours, theirs = socket.socketpair()
    agent = Channel(ours, FROM_WORKER)
    for version in (V3, Version(9, 1)):
        agent.send(Copy(version=version, plan=DIGEST))
    ours.shutdown(socket.SHUT_WR)
    spec = CopySpec(memory=JOB, folder=str(tmp_path), node="n1")
    assert run_copying(spec, Channel(theirs, BY_WORKER)) == 0
    assert priorities == [(os.PRIO_PROCESS, 0, 19)]
    assert agent.receive() == Copied(version=V3)
    assert "has no step 9" in agent.receive().error
    agent.close()
    theirs.close()
