"""The bulk of a joiner's state from snapshots in memory, so that busy workers need not give it.

A source announces a version and gives the results of all steps from there on. They are kept until
a snapshot that is not older is whole in memory: its state, and the results since then, are what the
source would have given. Which snapshots are of this history is known from the outcomes that come
with the results. If none turns up within a few steps, the source is asked for the state itself.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from torch import Tensor

from holdfast.engine.feed import FeedHeader
from holdfast.engine.state import Slice
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.job_state import Loaded, load_newest
from holdfast.snapshot.memory.sources import OtherHosts

MAX_RESULTS = 8
"""That are kept while a snapshot is waited for."""


class Memory(msgspec.Struct, frozen=True):
    """Where this job's snapshots are."""

    options: SnapshotOptions
    worker: str
    others: OtherHosts | None = None

    def load(self, slices: Sequence[Slice], agreed_in: Mapping[int, int]) -> Loaded | None:
        """The newest whole version after one of these steps, each with the epoch that agreed on
        it.
        """

        def is_of_this_history(version: Version) -> bool:
            return agreed_in.get(version.step - 1) == version.agreed_in

        return load_newest(
            {str(number): piece for number, piece in enumerate(slices)},
            is_of_this_history,
            job=self.options.job,
            node=node_of(self.worker),
            folder=Path(self.options.folder),
            others=self.others,
        )


class AwaitedBulk:
    """What one source has announced, and the results since then."""

    def __init__(self, memory: Memory, slices: Sequence[Slice]) -> None:
        self._memory, self._slices = memory, slices
        self.results: list[tuple[FeedHeader, Tensor]] = []

    def add(self, header: FeedHeader, payload: Tensor) -> None:
        self.results.append((header, payload.clone()))

    @property
    def is_given_up(self) -> bool:
        return len(self.results) >= MAX_RESULTS

    def load(self) -> Loaded | None:
        outcomes = [header.outcome for header, _ in self.results]
        agreed_in = {outcome.step: outcome.epoch for outcome in outcomes if outcome is not None}
        return self._memory.load(self._slices, agreed_in)

    def since(self, version: int) -> list[tuple[FeedHeader, Tensor]]:
        """Results of the steps that a version does not contain."""
        return [(header, payload) for header, payload in self.results if header.version >= version]
