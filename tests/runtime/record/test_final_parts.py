"""The final state is of one epoch, or not there."""

import pytest

from holdfast.plan.text import format_plan
from holdfast.runtime.record.final_parts import epoch_folder, missing_in, publish_final
from support.control_jobs import small_plan


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "plans").mkdir()
    for epoch, replicas in ((1, 3), (2, 2), (3, 2)):
        plan = small_plan(replicas)
        (tmp_path / "plans" / f"epoch-{epoch}.toml").write_text(format_plan(plan))
    return tmp_path


def write(run_dir, epoch, *workers):
    folder = epoch_folder(run_dir / "final.part", epoch)
    folder.mkdir(parents=True, exist_ok=True)
    for worker in workers:
        (folder / f"{worker}.safetensors").write_text(f"{epoch}")


def final(run_dir):
    return {path.stem: path.read_text() for path in (run_dir / "final").glob("*")}


def test_a_worker_that_was_killed_while_it_wrote_leaves_the_epoch_after(run_dir):
    write(run_dir, 1, "n0.g0", "n2.g0")
    write(run_dir, 2, "n0.g0", "n1.g0")
    assert missing_in(run_dir, 1) == ["n1.g0"]
    assert publish_final(run_dir)
    assert final(run_dir) == {"n0.g0": "2", "n1.g0": "2"}
    assert not (run_dir / "final.part").exists()


def test_the_newest_whole_one_counts(run_dir):
    write(run_dir, 1, "n0.g0", "n1.g0", "n2.g0")
    write(run_dir, 2, "n0.g0", "n1.g0")
    write(run_dir, 3, "n1.g0")
    (run_dir / "final").mkdir()
    (run_dir / "final" / "n9.g9.safetensors").write_text("of an earlier run")
    assert publish_final(run_dir)
    assert final(run_dir) == {"n0.g0": "2", "n1.g0": "2"}


def test_without_a_whole_one_there_is_none(run_dir):
    assert not publish_final(run_dir)
    write(run_dir, 1, "n0.g0")
    write(run_dir, 7, "n0.g0")
    assert not publish_final(run_dir)
    assert not (run_dir / "final").exists()
