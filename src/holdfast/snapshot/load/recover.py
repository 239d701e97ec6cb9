"""Going back to the newest version that can be loaded.

Candidates are what `find_loadable` finds, the newest first. Each is tried once; one that
cannot be loaded after all (bytes that do not fit and have no other source) is passed over with its
reason, for the next. In a job the coordinator walks through them and all workers load the same one;
`recover` is the whole walk for a single process.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.snapshot.disk.checkpoints import choose_checkpoint, valid_checkpoints
from holdfast.snapshot.disk.dcp import Checkpoint
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.assemble import CannotLoad, LoadReport, Want, assemble, fetch_other
from holdfast.snapshot.load.catalog import Catalog
from holdfast.snapshot.loadable import LoadableVersion, find_loadable
from holdfast.snapshot.loop_state import unpack_loop_state
from holdfast.snapshot.manifest import Holding, by_version, survey
from holdfast.snapshot.memory.sources import Source
from holdfast.snapshot.share import OTHER_KEY


class RestoredVersion(msgspec.Struct, frozen=True):
    choice: LoadableVersion
    report: LoadReport
    values: dict[str, object]
    """The loop's state."""
    passed: tuple[str, ...]
    """Newer versions that could not be loaded, and why."""


def open_loadable(
    choice: LoadableVersion, sources: Sequence[Source], here: str = "", *, verify: bool = True
) -> tuple[Catalog | None, Checkpoint | None]:
    """What `assemble` needs; HoldfastError if it is not there any more. `verify`: all bytes of a
    checkpoint, before any of it is used.
    """
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
        checkpoint = _open_checkpoint(choice, verify)
    return catalog, checkpoint


def _open_checkpoint(choice: LoadableVersion, verify: bool) -> Checkpoint:
    path = Path(choice.checkpoint)
    step = int(path.name.removeprefix("step-"))
    return Checkpoint(choose_checkpoint(path.parent, step, verify=verify))


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
    found = find_loadable(survey(manifests), valid_checkpoints(root), accept)
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
    catalog, checkpoint = open_loadable(choice, sources, here)
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
