"""Back to the newest version that can be loaded, with the reason for each that could not."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import uuid

import pytest

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.snapshot.disk.persist import write_checkpoint
from holdfast.snapshot.layout import chunk_checksums
from holdfast.snapshot.load.assemble import CannotLoad, assemble
from holdfast.snapshot.load.recover import open_loadable, recover
from holdfast.snapshot.loadable import find_loadable
from holdfast.snapshot.loop_state import pack_loop_state
from holdfast.snapshot.manifest import survey
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.memory.owners import arena_name, files_of, remove
from holdfast.snapshot.memory.sources import NodeMemory
from holdfast.snapshot.share import OTHER_KEY, plan_shares
from support.random_plans import make_units
from support.snapshots import Cluster, check_wants, fill_slot, random_state, wants_for

UNITS = make_units(3, tied=True)
SAVED = regular_plan(UNITS, replicas=2, stages=2, tensor=2, micro_batches=4, devices_per_node=4)
LOADED = regular_plan(UNITS, stages=3, micro_batches=3)


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "shm").mkdir()
    made = Cluster(SAVED, tmp_path / "shm", other_bytes=128)
    yield made
    made.close()


def save(cluster, version, persist_to=None):
    state = random_state(SAVED, version.step)
    for arena in cluster.arenas:
        slot = arena.begin(version)
        checksums = fill_slot(slot, state)
        slot.bytes(OTHER_KEY)[:] = pack_loop_state({"step": version.step}, 128)
        checksums[OTHER_KEY] = chunk_checksums(slot.bytes(OTHER_KEY), slot.layout.chunk_bytes)
        slot.seal(checksums)
    if persist_to is not None:
        write_checkpoint(persist_to, cluster.catalog(version), {"step": version.step})


def load(cluster, root=None, lost=(), **options):
    wants = wants_for(LOADED, "n0.g1")
    found = recover(wants, cluster.memories(lost), root, **options)
    check_wants(wants, random_state(SAVED, found.choice.version.step))
    assert found.values == {"step": found.choice.version.step}
    return found


def ruin(cluster, version):
    """So much that no parity helps."""
    for arena in cluster.arenas:
        slot = arena.slot(version)
        for entry in slot.layout.entries:
            slot.tensor(entry.key)[0] ^= 1


def test_memory_first_the_newest(cluster):
    save(cluster, Version(4, 1))
    save(cluster, Version(5, 1))
    found = load(cluster)
    assert found.choice.version == Version(5, 1)
    assert found.passed == ()


def test_a_ruined_version_is_passed_over_for_the_older(cluster, tmp_path):
    save(cluster, Version(3, 1), tmp_path / "disk")
    save(cluster, Version(4, 1))
    save(cluster, Version(5, 1))
    ruin(cluster, Version(5, 1))
    found = load(cluster, tmp_path / "disk")
    assert found.choice.version == Version(4, 1)
    assert "step 5" in found.passed[0]
    ruin(cluster, Version(4, 1))
    found = load(cluster, tmp_path / "disk")
    assert found.choice.version == Version(3, 1)
    assert [reason[:6] for reason in found.passed] == ["step 5", "step 4"]
    assert set(found.report.bytes_by_origin()) == {"storage"}


def test_memory_and_disk_of_one_version_help_each_other(cluster, tmp_path):
    save(cluster, Version(5, 1), tmp_path / "disk")
    ruin(cluster, Version(5, 1))
    found = load(cluster, tmp_path / "disk")
    assert found.choice.version == Version(5, 1)
    assert "storage" in found.report.bytes_by_origin()
    assert all("checksum" in reason for reason in found.report.reasons())


def test_without_any_version_all_reasons_are_told(cluster):
    with pytest.raises(HoldfastError, match="no version can be loaded"):
        load(cluster)
    save(cluster, Version(5, 1))
    ruin(cluster, Version(5, 1))
    with pytest.raises(HoldfastError, match=r"no version can be loaded; step 5 \(epoch 1\)"):
        load(cluster)


def test_history_decides_what_counts(cluster):
    save(cluster, Version(4, 1))
    save(cluster, Version(5, 1))
    found = load(cluster, accept=lambda version: version.step < 5)
    assert found.choice.version == Version(4, 1)


WORKER = """
import os, pickle, sys
from holdfast.snapshot.memory.arena import Arena, Version
arenas = [Arena.attach(int(fd)) for fd in sys.argv[2].split(",")]
own = [arena for arena in arenas if arena.layout.node == sys.argv[1]]
with open(sys.argv[3], "rb") as file:
    states = pickle.load(file)
step = 0
while True:
    step += 1
    for arena in own:
        slot = arena.begin(Version(step, 1), Version(step - 1, 1))
        content, checksums = states[step % 4][arena.layout.worker]
        for key, data in content.items():
            slot.bytes(key)[:] = data
        slot.seal(checksums)
    while any(arena.newest() is None or arena.newest().version.step < step for arena in arenas):
        os.sched_yield()
"""


def _write_states(path, folder):
    """What the workers are to write, for four states in turn: they start faster without torch."""
    cluster = Cluster(SAVED, folder)
    states = []
    for seed in range(4):
        filled = {}
        for arena in cluster.arenas:
            slot = arena.begin(Version(1, 1))
            checksums = fill_slot(slot, random_state(SAVED, seed))
            content = {e.key: bytes(slot.bytes(e.key)) for e in slot.layout.entries}
            filled[arena.layout.worker] = content, checksums
            arena.abandon()
        states.append(filled)
    cluster.close()
    path.write_bytes(pickle.dumps(states))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "at_least"), [((), 3), (("n0",), 5), (("n1",), 8)], ids=["none", "n0", "n1"]
)
def test_all_workers_are_killed_and_a_node_is_lost(lost, at_least, tmp_path):
    """Real shared memory, one process per node that writes version after version; SIGKILL to all
    at an arbitrary moment, and the memory of a node gone: a complete version is always left, and
    what is loaded is that, bit for bit.
    """
    job = uuid.uuid4().hex
    shares = plan_shares(SAVED, chunk_bytes=64, other_bytes=16)
    assert shares.copies == ()
    arenas = [Arena.create(arena_name(job, lay), lay) for lay in shares.layouts]
    try:
        _write_until_killed(arenas, tmp_path, at_least)
        memories = [
            NodeMemory(node, [a for a in arenas if a.layout.node == node])
            for node in ("n0", "n1")
            if node not in lost
        ]
        choice, *_ = find_loadable(survey(m for memory in memories for m in memory.manifests()), {})
        assert choice.version.step >= at_least
        wants = wants_for(LOADED, "n0.g2")
        report = assemble(wants, open_loadable(choice, memories)[0])
        check_wants(wants, random_state(SAVED, choice.version.step % 4))
        # (Without a loss parity may serve as well, where one node was ahead of the other.)
        assert not lost or "parity" in report.bytes_by_origin()
    finally:
        for arena in arenas:
            arena.close()
        remove(job)
    assert files_of(job) == []


def _write_until_killed(arenas, folder, at_least, meanwhile=os.sched_yield):
    fds = [arena.fd for arena in arenas]
    states = folder / "states.pickle"
    _write_states(states, folder)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, node, ",".join(map(str, fds)), str(states)],
            pass_fds=fds,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for node in ("n0", "n1")
    ]
    try:
        while any(a.newest() is None or a.newest().version.step < at_least for a in arenas):
            assert all(writer.poll() is None for writer in writers)
            meanwhile()
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.wait()


@pytest.mark.process
@pytest.mark.slow
def test_a_reader_beside_a_writer_never_gets_a_wrong_byte(tmp_path):
    """Nothing is paused for the reader: it gets a whole version, or none and the reason."""
    job = uuid.uuid4().hex
    layouts = plan_shares(SAVED, chunk_bytes=64, other_bytes=16).layouts
    arenas = [Arena.create(arena_name(job, lay), lay) for lay in layouts]
    states = [random_state(SAVED, step) for step in range(4)]
    memories = [NodeMemory(n, [a for a in arenas if a.layout.node == n]) for n in ("n0", "n1")]
    loaded = []

    def read():
        found = find_loadable(survey(m for memory in memories for m in memory.manifests()), {})
        wants = wants_for(LOADED, "n0.g1")
        for choice in found[:1]:
            with contextlib.suppress(CannotLoad, HoldfastError):
                assemble(wants, open_loadable(choice, memories)[0], num_threads=1)
                check_wants(wants, states[choice.version.step % 4])
                loaded.append(choice.version.step)

    try:
        _write_until_killed(arenas, tmp_path, at_least=40, meanwhile=read)
        read()
        assert loaded
        assert loaded == sorted(loaded)
    finally:
        for arena in arenas:
            arena.close()
        remove(job)
