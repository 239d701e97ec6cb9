"""What an emulated device is told, apart from torch: job files are read where there is none."""

import msgspec

from holdfast.detect.facts import Workload
from holdfast.plan.profile import Link, Profile, link_between
from holdfast.plan.workers import node_of


class Emulation(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds, speeds relative to the profile."""

    profile: Profile
    speed: dict[str, float] = {}
    """Of workers and nodes; a worker's own comes before its node's."""
    link_speed: dict[str, float] = {}
    """`n0>n1` or `n0.g1>n1.g0`."""
    attention: float = 0.3
    """The share of a block's time that grows with the squared lengths of documents."""
    noise: float = 0.0
    """Of a computation's time, relative to it."""
    row_tokens: int = 1
    """Of a full row of one document, for which the profile's times are."""
    rows: int = 1

    def slowness(self, worker: str) -> float:
        """How many times longer than the profile says its computations take."""
        return 1.0 / self.speed.get(worker, self.speed.get(node_of(worker), 1.0))

    def work(self, load: Workload, *, has_attention: bool) -> float:
        """A micro-batch's time, relative to full rows of one document each."""
        tokens = load.tokens / (self.rows * self.row_tokens)
        if not has_attention or not self.attention:
            return tokens
        squares = load.squares / (self.rows * self.row_tokens**2)
        return (1 - self.attention) * tokens + self.attention * squares


class LinkSpeeds:
    """The links as they are now: those of the profile, with their speeds, and what was slowed down
    since.
    """

    def __init__(self, emulation: Emulation) -> None:
        self._profile = emulation.profile
        self._factors = {pair: 1.0 / speed for pair, speed in emulation.link_speed.items()}
        self._slow: dict[str, float] = {}

    def slow_down(self, link: str, factor: float) -> None:
        """`factor` 1: as before."""
        self._slow[link] = factor

    def message(self, source: str, target: str) -> Link:
        return _slower(link_between(self._profile, source, target), self._factor(source, target))

    def ring(self, members: tuple[str, ...]) -> Link:
        """A ring goes at the pace of its slowest link."""
        link = self._profile.ring_link(members)
        around = zip(members, (*members[1:], members[0]), strict=True)
        return _slower(link, max(self._factor(a, b) for a, b in around))

    def _factor(self, source: str, target: str) -> float:
        names = (f"{source}>{target}", f"{node_of(source)}>{node_of(target)}")
        factor = 1.0
        for table in (self._factors, self._slow):
            factor *= next((table[name] for name in names if name in table), 1.0)
        return factor


def _slower(link: Link, factor: float) -> Link:
    return Link(link.latency * factor, link.bandwidth / factor)
