"""How an agent finds its coordinator, and what it does about one that it does not reach."""

from collections.abc import Callable, Mapping
from typing import Protocol

from holdfast.runtime.launch.fork_server import ForkNotice
from holdfast.runtime.wire.connection import CONNECT_S, HANDSHAKE_S, UNHEARD_MS
from holdfast.runtime.wire.host_messages import Peer, ReachTold


class CoordinatorFinder(Protocol):
    unheard_ms: int
    """What was sent to a coordinator and is not acknowledged for so long says that it is gone."""
    connect_s: float
    """How long a try may take: by then there may be another coordinator elsewhere."""

    def start(self, hang_up: Callable[[str], object], end: Callable[[], object]) -> None:
        """In the agent's event loop. `hang_up`: the connection to the coordinator of the moment;
        `end`: the job is over.
        """

    def address(self) -> tuple[str, int] | None:
        """None: it is not known where one is."""

    def connected(self, term: int) -> bool:
        """False: it must not be followed."""

    def lost(self) -> None:
        """The connection ended, or could not be made."""

    def doubted(self, is_in_doubt: bool) -> None:
        """The coordinator itself does not know whether it may decide."""

    def learn(self, peers: Mapping[str, Peer]) -> None:
        """Where the agents of other nodes are."""

    def reach(self) -> ReachTold:
        """What other agents are told."""

    def handle_fork_notice(self, notice: ForkNotice) -> bool:
        """True: it is about a process of its own."""

    async def close(self, *, is_job_over: bool) -> None:
        """The agent ends, with the job or before it."""


class FixedCoordinator:
    """(CoordinatorFinder) Of a job on one machine: the launcher keeps the socket at which one
    coordinator after the other listens.
    """

    unheard_ms = UNHEARD_MS
    connect_s = CONNECT_S + HANDSHAKE_S

    def __init__(self, host: str, port: int) -> None:
        self._address, self._term = (host, port), 0

    def start(self, hang_up: Callable[[str], object], end: Callable[[], object]) -> None:
        pass

    def address(self) -> tuple[str, int] | None:
        return self._address

    def connected(self, term: int) -> bool:
        is_newest = term >= self._term
        self._term = max(term, self._term)
        return is_newest

    def lost(self) -> None:
        pass

    def doubted(self, is_in_doubt: bool) -> None:
        pass

    def learn(self, peers: Mapping[str, Peer]) -> None:
        pass

    def reach(self) -> ReachTold:
        return ReachTold(is_reached=False, term=self._term)

    def handle_fork_notice(self, notice: ForkNotice) -> bool:
        return False

    async def close(self, *, is_job_over: bool) -> None:
        pass
