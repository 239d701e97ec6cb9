"""Only whole checkpoints are chosen, only surplus ones removed."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import (
    FOREIGN_EPOCH,
    FileMark,
    Marker,
    choose_checkpoint,
    file_checksum,
    list_checkpoints,
    prune,
    publish,
    step_folder,
)
from holdfast.snapshot.layout import Version


def write(root, step, agreed_in=1, text=b"tensors"):
    partial = root / f"step-{step}.part"
    partial.mkdir(parents=True)
    (partial / ".metadata").write_bytes(b"contents")
    (partial / "__0_0.distcp").write_bytes(text)
    files = {
        name: FileMark((partial / name).stat().st_size, file_checksum(partial / name))
        for name in (".metadata", "__0_0.distcp")
    }
    return publish(partial, Marker(Version(step, agreed_in), "plan", files))


def test_the_newest_valid_one_is_chosen(tmp_path):
    for step in (5, 20, 100):
        write(tmp_path, step)
    found = choose_checkpoint(tmp_path)
    assert found.version == Version(100, 1)
    assert found.path == str(tmp_path / "step-100")
    assert choose_checkpoint(tmp_path, 20).version.step == 20
    assert [f.version.step for f in list_checkpoints(tmp_path)] == [100, 20, 5]


def damage(folder, how):
    if how == "byte":
        data = bytearray((folder / "__0_0.distcp").read_bytes())
        data[3] ^= 1
        (folder / "__0_0.distcp").write_bytes(data)
    elif how == "short":
        (folder / "__0_0.distcp").write_bytes(b"tens")
    elif how == "missing":
        (folder / "__0_0.distcp").unlink()
    elif how == "marker":
        (folder / "holdfast.json").write_bytes(b'{"version": ')
    else:
        (folder / ".metadata").unlink()


@pytest.mark.parametrize("how", ["byte", "short", "missing", "marker", "contents"])
def test_a_damaged_one_is_passed_over_with_its_reason(tmp_path, how):
    write(tmp_path, 10)
    damage(write(tmp_path, 20), how)
    assert choose_checkpoint(tmp_path).version.step == 10
    with pytest.raises(HoldfastError, match="step-20: "):
        choose_checkpoint(tmp_path, 20)
    damage(step_folder(tmp_path, 10), how)
    with pytest.raises(HoldfastError, match=r"no valid checkpoint; .*step-20: .*step-10: "):
        choose_checkpoint(tmp_path)


def test_what_was_not_finished_is_not_there(tmp_path):
    (tmp_path / "step-30.part").mkdir()
    (tmp_path / "step-30.part" / ".metadata").write_bytes(b"x")
    (tmp_path / "step-40").mkdir()
    write(tmp_path, 10)
    assert choose_checkpoint(tmp_path).version.step == 10
    assert "not finished" in list_checkpoints(tmp_path)[-1].complaint


def test_plain_dcp_folders_count(tmp_path):
    folder = tmp_path / "step-7"
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"x")
    assert choose_checkpoint(tmp_path).version == Version(7, FOREIGN_EPOCH)


def test_a_marker_of_another_step_is_refused(tmp_path):
    write(tmp_path, 10).rename(tmp_path / "step-11")
    with pytest.raises(HoldfastError, match=r"folder is of step 11, its marker of step 10"):
        choose_checkpoint(tmp_path, 11)


def test_nothing_there(tmp_path):
    with pytest.raises(HoldfastError, match="has no valid checkpoint"):
        choose_checkpoint(tmp_path / "none")
    with pytest.raises(HoldfastError, match="load_step -2"):
        choose_checkpoint(tmp_path, -2)
    with pytest.raises(HoldfastError, match="not finished"):
        choose_checkpoint(tmp_path, 3)


def test_only_surplus_is_removed(tmp_path):
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    damage(step_folder(tmp_path, 4), "missing")
    (tmp_path / "step-2.part").mkdir()
    (tmp_path / "step-9.part").mkdir()
    (tmp_path / "notes").mkdir()
    assert prune(tmp_path, 2) == ["step-2.part", "step-1"]
    left = sorted(path.name for path in tmp_path.iterdir())
    # Two valid ones, the damaged one for a person to look at, and the write that is under way.
    assert left == ["notes", "step-2", "step-3", "step-4", "step-9.part"]
    assert prune(tmp_path, 0) == []


def test_the_same_step_of_a_later_epoch_replaces_the_earlier(tmp_path):
    write(tmp_path, 5, agreed_in=1)
    write(tmp_path, 5, agreed_in=2, text=b"other tensors")
    assert choose_checkpoint(tmp_path).version == Version(5, 2)


def test_a_history_that_was_rolled_back_is_older_than_the_one_that_followed(tmp_path):
    write(tmp_path, 100, agreed_in=1)
    write(tmp_path, 80, agreed_in=2)
    assert choose_checkpoint(tmp_path).version == Version(80, 2)
    assert prune(tmp_path, 1) == ["step-100"]
