"""`holdfast inspect`: what is there, and what is wrong with it."""

import json
import uuid

import pytest

from holdfast.cli import inspect_show
from holdfast.cli.main import main
from holdfast.plan.build import regular_plan
from holdfast.snapshot.disk.persist import write_checkpoint
from holdfast.snapshot.memory.arena import Arena, Version
from holdfast.snapshot.memory.owners import arena_name, remove
from holdfast.snapshot.share import plan_shares
from support.random_plans import make_units
from support.snapshots import Cluster, fill_slot, random_state

PLAN = regular_plan(make_units(2), replicas=2, micro_batches=2, devices_per_node=1)


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A job's arenas in a folder that stands for shared memory."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(inspect_show, "SHARED_MEMORY", folder)
    arenas = [
        Arena.create(arena_name("job-1", layout), layout, folder)
        for layout in plan_shares(PLAN, chunk_bytes=64, other_bytes=16).layouts
    ]
    for arena in arenas:
        slot = arena.begin(Version(7, 2))
        slot.seal(fill_slot(slot, random_state(PLAN)))
    yield arenas
    for arena in arenas:
        arena.close()


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "arenas").mkdir()
    cluster = Cluster(PLAN, tmp_path / "arenas")
    for step in (3, 5):
        cluster.save(Version(step, 1), random_state(PLAN, step))
        version = Version(step, 1)
        write_checkpoint(tmp_path / "run/checkpoints", cluster.catalog(version), {"step": step})
    cluster.close()
    return tmp_path / "run"


def inspect(capsys, *argv):
    code = main(["inspect", *map(str, argv)])
    return code, capsys.readouterr()


def test_memory_is_listed(memory, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, output = inspect(capsys, "--shm", "--verify")
    assert code == 0
    assert "step 7 (epoch 2)" in output.out
    assert "holdfast-job-1-n0.g0" in output.out
    assert "n0.g0, n1.g0" in output.out
    assert "complete in the memory of n0, n1" in output.out
    assert "damaged" not in output.out


def test_memory_as_numbers(memory, capsys):
    memory[0].begin(Version(8, 2))
    code, output = inspect(capsys, "--shm", "--json")
    found = json.loads(output.out)
    assert code == 0
    assert [line["worker"] for line in found["arenas"]] == ["n0.g0", "n1.g0"]
    assert found["arenas"][0]["in_progress"] == "step 8 (epoch 2)"
    assert found["arenas"][0]["owner_lives"]
    (version,) = found["versions"]
    assert (version["job"], version["step"], version["agreed_in"]) == ("job-1", 7, 2)
    assert version["is_complete"]
    assert version["num_bytes"] == 12 * sum(unit.num_parameters for unit in PLAN.units)


def test_damage_is_found_only_where_bytes_are_read(memory, capsys):
    key = memory[0].layout.entries[0].key
    memory[0].newest().tensor(key)[2] ^= 1
    assert inspect(capsys, "--shm")[0] == 0
    code, output = inspect(capsys, "--shm", "--verify")
    assert code == 1
    assert f"damaged: n0: chunk 0 of '{key}' has checksum" in output.out


def test_foreign_files_are_reported(memory, capsys, tmp_path):
    (tmp_path / "shm" / "holdfast-job-1-n9.g9").write_bytes(b"nothing")
    code, output = inspect(capsys, "--shm")
    assert code == 1
    assert "holdfast-job-1-n9.g9" in output.out


def test_empty_memory(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_show, "SHARED_MEMORY", tmp_path)
    code, output = inspect(capsys, "--shm")
    assert (code, output.out) == (0, "No snapshots in shared memory.\n")


def test_checkpoints_are_listed(run_dir, capsys):
    code, output = inspect(capsys, run_dir, "--verify", "--json")
    lines = json.loads(output.out)["checkpoints"]
    assert code == 0
    assert [(line["step"], line["agreed_in"], line["is_valid"]) for line in lines] == [
        (5, 1, True),
        (3, 1, True),
    ]
    # Parameters, two moments and the number of updates of eight tensors.
    assert lines[0]["num_tensors"] == 8 * 4
    code, output = inspect(capsys, run_dir / "checkpoints")
    assert "step-5" in output.out
    assert "valid" in output.out


def test_a_damaged_checkpoint_is_found(run_dir, capsys):
    path = run_dir / "checkpoints/step-5/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert inspect(capsys, run_dir)[0] == 0
    code, output = inspect(capsys, run_dir, "--verify")
    assert code == 1
    assert "is damaged" in " ".join(output.out.split())


def test_a_question_is_needed(capsys, tmp_path):
    code, output = inspect(capsys)
    assert code == 1
    assert "name a run directory, or --shm" in output.err
    code, output = inspect(capsys, tmp_path / "none")
    assert code == 1
    assert "is no directory" in output.err
    assert inspect(capsys, tmp_path)[0] == 1
    (tmp_path / "journal.jsonl").touch()
    code, output = inspect(capsys, tmp_path)
    assert (code, output.out) == (0, "No checkpoints.\n")


def test_real_shared_memory_is_looked_at(capsys):
    job = uuid.uuid4().hex
    layout = plan_shares(PLAN, chunk_bytes=64, other_bytes=16).layouts[0]
    arena = Arena.create(arena_name(job, layout), layout)
    try:
        _, output = inspect(capsys, "--shm", "--json")
        assert job in output.out
    finally:
        arena.close()
        remove(job)
