"""Which versions can be loaded: the one place where that is found out.

What is known of memory comes as statuses: from manifests, by a process that has the memory
(`manifest.survey`), or from what agents say they hold (`snapshot_index`). What is on disk comes as
the folders of valid checkpoints. A version that is in both is loaded from memory first, and from
disk where bytes of it are lost.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import VersionStatus


class LoadableVersion(msgspec.Struct, frozen=True):
    """A version that can be loaded, as far as one can tell without reading it."""

    version: Version
    plan: str
    """Digest of the plan under which it is in memory; empty: it is on disk only."""
    checkpoint: str
    """Its folder; empty: it is in memory only."""
    reason: str
    is_degraded: bool = False
    """The redundancy in memory is used up somewhere."""


def find_loadable(
    in_memory: Iterable[VersionStatus],
    on_disk: Mapping[Version, str],
    accept: Callable[[Version], bool] = lambda version: True,
) -> list[LoadableVersion]:
    """The newest first. `accept` is what is known of history: a version that was agreed on in an
    epoch whose steps were undone is refused there.
    """
    found = [
        LoadableVersion(
            status.version,
            status.plan,
            on_disk.get(status.version, ""),
            status.reason,
            status.is_degraded,
        )
        for status in in_memory
        if status.is_complete
    ]
    known = {one.version for one in found}
    found += [
        LoadableVersion(version, "", path, f"on disk: {path}")
        for version, path in on_disk.items()
        if version not in known
    ]
    accepted = [one for one in found if accept(one.version)]
    return sorted(accepted, key=lambda one: (one.version.age, one.plan), reverse=True)
