"""Which version to go back to, and going there.

Candidates are all versions that are complete in memory, on disk, or in both together, the newest
first. Each is tried once; one that cannot be loaded after all (bytes that do not fit and have no
other source) is passed over with its reason, for the next. In a job the coordinator walks through
`choices` and everybody loads the same one; `recover` is the whole walk for a single process.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import Found, choose_checkpoint, list_checkpoints
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.assemble import CannotLoad, LoadReport, Want, assemble, fetch_other
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.loop_state import unpack_loop_state
from holdfast.snapshot.manifest import Holding, Manifest, by_version, survey
from holdfast.snapshot.memory.sources import Source
from holdfast.snapshot.share import OTHER_KEY


class LoadableVersion(msgspec.Struct, frozen=True):
    """A version that can be loaded, as far as one can tell without reading it."""

    version: Version
    plan: str
    """Digest of the plan under which it is in memory; empty: it is on disk only."""
    checkpoint: str
    """Its folder; empty: it is in memory only."""
    reason: str


def choices(
    manifests: Sequence[Manifest],
    checkpoints: Iterable[Found],
    accept: Callable[[Version], bool] = lambda version: True,
) -> list[LoadableVersion]:
    """The newest first; of one version, what is complete in memory before what is on disk."""
    on_disk = {found.version: found.path for found in checkpoints if found.is_valid}
    found: list[LoadableVersion] = []
    for standing in survey(manifests):
        if standing.is_complete:
            path = on_disk.get(standing.version, "")
            found.append(LoadableVersion(standing.version, standing.plan, path, standing.reason))
    in_memory = {choice.version for choice in found}
    for version, path in on_disk.items():
        if version not in in_memory:
            found.append(LoadableVersion(version, "", path, f"on disk: {path}"))
    accepted = [choice for choice in found if accept(choice.version)]
    return sorted(accepted, key=lambda c: (c.version.age, c.plan), reverse=True)


class RestoredVersion(msgspec.Struct, frozen=True):
    choice: LoadableVersion
    report: LoadReport
    values: dict[str, object]
    """The loop's state."""
    passed: tuple[str, ...]
    """Newer versions that could not be loaded, and why."""


def open_choice(
    choice: LoadableVersion, sources: Sequence[Source], here: str = ""
) -> tuple[Catalog | None, Checkpoint | None]:
    """What `assemble` needs; HoldfastError if it is not there any more."""
    catalog = checkpoint = None
    if choice.plan:
        manifests = [m for source in sources for m in source.manifests()]
        groups = by_version(
            m for m in manifests if (m.version, m.layout.plan) == (choice.version, choice.plan)
        )
        if not groups:
            raise HoldfastError(f"{choice.version} is not in memory any more")
        catalog = Catalog(Holding(groups[0]), sources, here)
    if choice.checkpoint:
        checkpoint = _open_checkpoint(choice)
    return catalog, checkpoint


def _open_checkpoint(choice: LoadableVersion) -> Checkpoint:
    path = Path(choice.checkpoint)
    step = int(path.name.removeprefix("step-"))
    return Checkpoint(choose_checkpoint(path.parent, step))


def recover(
    wants: Sequence[Want],
    sources: Sequence[Source],
    root: Path | None = None,
    *,
    here: str = "",
    accept: Callable[[Version], bool] = lambda version: True,
) -> RestoredVersion:
    """Load the newest version that can be loaded. HoldfastError, with all reasons, if none can:
    the targets are then undefined.
    """
    manifests = [manifest for source in sources for manifest in source.manifests()]
    found = choices(manifests, list_checkpoints(root) if root is not None else (), accept)
    passed: list[str] = []
    for choice in found:
        try:
            return _load(choice, wants, sources, here, tuple(passed))
        except (CannotLoad, HoldfastError) as error:
            passed.append(str(error))
    raise HoldfastError("; ".join(["no version can be loaded", *passed]))


def _load(
    choice: LoadableVersion,
    wants: Sequence[Want],
    sources: Sequence[Source],
    here: str,
    passed: tuple[str, ...],
) -> RestoredVersion:
    catalog, checkpoint = open_choice(choice, sources, here)
    report = assemble(wants, catalog, checkpoint)
    return RestoredVersion(choice, report, loop_values(catalog, checkpoint), passed)


def loop_values(catalog: Catalog | None, checkpoint: Checkpoint | None) -> dict[str, object]:
    """The loop's state from memory, or from disk where memory has none."""
    if catalog is not None and OTHER_KEY in catalog.holding.entries:
        try:
            return unpack_loop_state(fetch_other(catalog, OTHER_KEY))
        except CannotLoad:
            if checkpoint is None:
                raise
    return checkpoint.values() if checkpoint is not None else {}
