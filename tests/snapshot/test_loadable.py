"""One list of what can be loaded, from memory and from disk."""

from holdfast.snapshot.layout import Version
from holdfast.snapshot.loadable import find_loadable
from holdfast.snapshot.manifest import VersionStatus

IN_MEMORY = [
    VersionStatus(Version(7, 2), "p", is_complete=True, reason="here", num_computed=1),
    VersionStatus(Version(6, 2), "p", is_complete=False, reason="half of it"),
    VersionStatus(Version(5, 2), "p", is_complete=True, reason="here"),
]
ON_DISK = {Version(9, 1): "step-9", Version(6, 2): "step-6", Version(5, 2): "step-5"}


def test_each_version_once_the_newest_first():
    found = find_loadable(IN_MEMORY, ON_DISK)
    assert [one.version for one in found] == [
        Version(7, 2),
        Version(6, 2),
        Version(5, 2),
        Version(9, 1),
    ]
    assert [one.plan for one in found] == ["p", "", "p", ""], "half a version in memory is none"
    assert [one.checkpoint for one in found] == ["", "step-6", "step-5", "step-9"]
    assert [one.is_degraded for one in found] == [True, False, False, False]


def test_what_history_refuses_is_left_out():
    found = find_loadable(IN_MEMORY, ON_DISK, lambda version: version.agreed_in == 1)
    assert [one.version for one in found] == [Version(9, 1)]


def test_nothing_is_nothing():
    assert find_loadable([], {}) == []
