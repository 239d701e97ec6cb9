"""What only a directory has to do as a rendezvous."""

import stat

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.rendezvous.directory import DirectoryRendezvous
from holdfast.runtime.rendezvous.rendezvous import open_rendezvous


@pytest.fixture
def place(tmp_path):
    return open_rendezvous(f"dir:{tmp_path / 'job'}", create=True)


def test_no_part_of_a_record_is_left(tmp_path, place) -> None:
    assert isinstance(place, DirectoryRendezvous)
    assert place.append("coordinator", 1, b"first")
    assert not place.append("coordinator", 1, b"second")
    assert [path.name for path in (tmp_path / "job" / "coordinator").glob("*.part")] == []


def test_the_secret_is_for_its_owner_alone(tmp_path, place) -> None:
    place.keep_secret("s" * 32)
    assert stat.S_IMODE((tmp_path / "job" / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "dir:", "/shared", "nfs://x"])
def test_what_is_no_rendezvous_is_refused(text) -> None:
    with pytest.raises(HoldfastError, match="expected dir:PATH"):
        open_rendezvous(text)


def test_an_agent_does_not_make_the_directory(tmp_path) -> None:
    with pytest.raises(HoldfastError, match="start `holdfast run` first"):
        open_rendezvous(f"dir:{tmp_path / 'job'}")
