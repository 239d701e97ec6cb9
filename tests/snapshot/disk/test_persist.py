"""Directories of ours load with plain DCP; a write that ends anywhere leaves no wrong one."""

import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.snapshot.disk.checkpoints import choose_checkpoint, list_checkpoints
from holdfast.snapshot.disk.persist import (
    assign,
    finish,
    partial_folder,
    write_checkpoint,
    write_part,
)
from holdfast.snapshot.load.catalog import BytesLost
from holdfast.snapshot.memory.arena import Version
from support.random_plans import make_units
from support.snapshots import Cluster, random_state

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

V = Version(12, 3)
VALUES = {"step": 12, "rng": {"seed": 7}, "data": {"position": 480}}
PLAN = regular_plan(
    make_units(2, tied=True), replicas=2, stages=2, tensor=2, micro_batches=4, devices_per_node=4
)


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "shm").mkdir()
    made = Cluster(PLAN, tmp_path / "shm")
    yield made
    made.close()


def test_plain_dcp_loads_it(cluster, tmp_path):
    state = random_state(PLAN)
    cluster.save(V, state)
    path = write_checkpoint(tmp_path, cluster.catalog(V), VALUES)
    assert path == tmp_path / "step-12"
    whole = {name: torch.zeros_like(state[name, "parameter"]) for name, _ in state}
    moments = {
        name: {kind: torch.zeros_like(state[name, kind]) for kind in ("exp_avg", "exp_avg_sq")}
        | {"step": torch.tensor(0.0)}
        for name, _ in state
    }
    loaded = whole | {"optimizer": {"state": moments}, "step": 0, "rng": None, "data": None}
    dcp.load(loaded, checkpoint_id=path, no_dist=True)
    for name, kind in state:
        found = whole[name] if kind == "parameter" else moments[name][kind]
        assert torch.equal(found, state[name, kind])
    assert {key: loaded[key] for key in VALUES} == VALUES
    assert float(moments["block.0.wq"]["step"]) == 12.0


def test_tools_make_one_file_of_it(cluster, tmp_path):
    state = random_state(PLAN)
    cluster.save(V, state)
    path = write_checkpoint(tmp_path, cluster.catalog(V), VALUES)
    dcp_to_torch_save(path, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert torch.equal(whole["block.0.wq"], state["block.0.wq", "parameter"])
    found = whole["optimizer"]["state"]["block.0.wq"]["exp_avg"]
    assert torch.equal(found, state["block.0.wq", "exp_avg"])


def test_it_is_valid_and_its_leftovers_are_gone(cluster, tmp_path):
    cluster.save(V, random_state(PLAN))
    write_checkpoint(tmp_path, cluster.catalog(V), VALUES)
    (found,) = list_checkpoints(tmp_path, verify=True)
    assert found.is_valid
    assert found.version == V
    names = sorted(path.name for path in (tmp_path / "step-12").iterdir())
    assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "holdfast.json"]
    assert not partial_folder(tmp_path, V).exists()


def test_a_lost_node_is_persisted_from_parity(cluster, tmp_path):
    state = random_state(PLAN)
    cluster.save(V, state)
    catalog = cluster.catalog(V, lost=["n0"])
    assert catalog.holding.status().is_degraded
    path = write_checkpoint(tmp_path, catalog, VALUES)
    loaded = {name: torch.zeros_like(state[name, "parameter"]) for name, _ in state}
    dcp.load(loaded, checkpoint_id=path, no_dist=True)
    assert all(torch.equal(loaded[name], state[name, "parameter"]) for name in loaded)


def test_every_entry_is_given_to_one_node(cluster):
    cluster.save(V, random_state(PLAN))
    shares = assign(cluster.catalog(V).holding)
    keys = [entry.key for entries in shares.values() for entry in entries]
    assert len(keys) == len(set(keys))
    sizes = [sum(entry.num_bytes for entry in entries) for entries in shares.values()]
    assert max(sizes) < 1.2 * min(sizes)


def test_nodes_write_apart_and_nothing_is_published_before_the_last(cluster, tmp_path):
    cluster.save(V, random_state(PLAN))
    catalog = cluster.catalog(V)
    tensors = cluster.shares.layouts[0].tensors
    write_part(tmp_path, "n1", catalog)
    with pytest.raises(HoldfastError, match=r"not all of .* was written"):
        finish(tmp_path, V, tensors)
    assert list_checkpoints(tmp_path) == []
    write_part(tmp_path, "n0", catalog, VALUES)
    finish(tmp_path, V, tensors)
    assert choose_checkpoint(tmp_path).version == V


def test_parts_of_two_versions_are_refused(cluster, tmp_path):
    cluster.save(V, random_state(PLAN))
    write_part(tmp_path, "n0", cluster.catalog(V), VALUES)
    cluster.save(Version(12, 4), random_state(PLAN, 1))
    write_part(tmp_path, "n1", cluster.catalog(Version(12, 4)))
    with pytest.raises(HoldfastError, match=r"n1 wrote step 12 \(epoch 4\), not step 12"):
        finish(tmp_path, V, cluster.shares.layouts[0].tensors)


def test_an_incomplete_version_is_not_written(cluster, tmp_path):
    cluster.save(V, random_state(PLAN), workers=["n0.g0"])
    with pytest.raises(HoldfastError, match="not complete"):
        write_checkpoint(tmp_path, cluster.catalog(V), VALUES)
    assert list(tmp_path.glob("step-*")) == []


def test_damaged_memory_is_not_written(cluster, tmp_path):
    cluster.save(V, random_state(PLAN))
    for arena in cluster.arenas:
        for entry in arena.layout.entries:
            arena.slot(V).tensor(entry.key)[0] ^= 1
    with pytest.raises(BytesLost):
        write_checkpoint(tmp_path, cluster.catalog(V), VALUES)
    assert list_checkpoints(tmp_path) == []


def test_the_pace_is_told_every_byte(cluster, tmp_path):
    cluster.save(V, random_state(PLAN))
    told = []
    path = write_checkpoint(tmp_path, cluster.catalog(V), VALUES, told.append)
    assert sum(told) == sum(file.stat().st_size for file in path.glob("*.distcp"))


WRITER = """
import sys
from pathlib import Path
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.manifest import Holding, by_version
from holdfast.snapshot.disk.persist import write_checkpoint
from holdfast.snapshot.memory.sources import NodeMemory
shm, root, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
arenas = [Arena.open(path) for path in shm.iterdir()]
memories = [NodeMemory(n, [a for a in arenas if a.layout.node == n]) for n in ("n0", "n1")]
manifests = [m for memory in memories for m in memory.manifests()]
written = 0
def pace(num_bytes):
    global written
    written += num_bytes
    if written > limit:
        print("there", flush=True)
        sys.stdin.read()
newest = Holding(by_version(manifests)[0])
write_checkpoint(root, Catalog(newest, memories), {"step": 12}, pace)
print("done", flush=True)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 30_000])
def test_a_writer_killed_midway_leaves_the_older_checkpoint(cluster, tmp_path, limit):
    cluster.save(Version(11, 3), random_state(PLAN, 1))
    write_checkpoint(tmp_path, cluster.catalog(Version(11, 3)), VALUES)
    cluster.save(V, random_state(PLAN, 2))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "shm"), str(tmp_path), str(limit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with writer:
        line = writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    assert line == b"there\n"
    assert choose_checkpoint(tmp_path).version == Version(11, 3)
    # The next attempt is not disturbed by what was left.
    write_checkpoint(tmp_path, cluster.catalog(V), VALUES)
    assert choose_checkpoint(tmp_path).version == V
