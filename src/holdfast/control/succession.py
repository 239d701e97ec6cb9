"""Which agent starts the next coordinator of a job on several hosts, and when.

Any agent can: the journal lies at the rendezvous. Who starts one takes the next term there, which
one process alone can get, so nothing is wrong if several try. But a coordinator that is replaced
without need is a disturbance, and two halves of a network that replace each other's coordinator
would never come to a decision. So an agent that does not reach the coordinator

    waits      for a moment: the coordinator may be started again where it was. The agent of the
               lowest node waits shortest, so that one of them is first
    asks       the agents of the other nodes: if any of them reaches the coordinator, it is this
               agent that is cut off
    compares   with what the coordinator says at the rendezvous: if it hears as many nodes as this
               agent does, it stays. So of two halves the larger one has the coordinator
    waits on   if no other agent is heard: who hears none is more likely to be cut off itself
    takes      the next term, and waits longer before it tries again

Training needs no coordinator meanwhile.
"""

import msgspec


class SuccessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    patience_ms: int = 1000
    """Without the coordinator, before anything is tried."""
    stagger_ms: int = 300
    """More, for every node before this one."""
    max_stagger_ms: int = 1500
    alone_ms: int = 8000
    """Instead, if no other agent is heard."""
    start_ms: int = 3000
    """How long a coordinator that has taken a term may take until it is reached; twice as long
    after every one that was started here in vain.
    """
    max_start_ms: int = 60_000


DEFAULT_SETTINGS = SuccessionSettings()


class PeerAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of other nodes said."""

    num_heard: int = 0
    num_reaching: int = 0
    """That are connected to the coordinator of the newest term."""
    num_by_coordinator: int = 0
    """Nodes that this coordinator hears, as it says at the rendezvous; 0: none, or it is silent."""


class SuccessionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    takes: bool
    reason: str


class Succession:
    """One agent's part of it."""

    def __init__(
        self,
        node_number: int,
        num_nodes: int,
        now_ms: int,
        settings: SuccessionSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._settings, self._num_others = settings, num_nodes - 1
        stagger_ms = min(settings.stagger_ms * node_number, settings.max_stagger_ms)
        self._patience_ms = settings.patience_ms + stagger_ms
        self.term = 0
        """The highest that was seen: no lower one is followed."""
        self._missing_since_ms: int | None = now_ms
        self._not_before_ms = 0
        self._num_tries = 0

    @property
    def is_reached(self) -> bool:
        return self._missing_since_ms is None

    def reached(self, term: int) -> bool:
        """The agent is connected to a coordinator; False: it is one that it must not follow."""
        if term < self.term:
            return False
        self.term, self._missing_since_ms, self._num_tries = term, None, 0
        self._not_before_ms = 0
        return True

    def missed(self, now_ms: int) -> None:
        """The connection is lost, or could not be made."""
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms

    def saw_term(self, term: int, now_ms: int) -> bool:
        """The newest at the rendezvous; True: it is new, and its coordinator has to be found."""
        if term <= self.term:
            return False
        self.term = term
        self._missing_since_ms = now_ms
        self._not_before_ms = max(self._not_before_ms, now_ms + self._settings.start_ms)
        return True

    def is_current(self, term: int) -> bool:
        """Does an agent that reaches the coordinator of this term count?"""
        return term >= self.term

    def is_due(self, now_ms: int) -> bool:
        """Time to ask the others."""
        since_ms = self._missing_since_ms
        if since_ms is None or now_ms < self._not_before_ms:
            return False
        return now_ms - since_ms >= self._patience_ms

    def judge(self, answers: PeerAnswers, now_ms: int) -> SuccessionVerdict:
        """After the others were asked."""
        since_ms = self._missing_since_ms
        if since_ms is None or not self.is_due(now_ms):
            return SuccessionVerdict(takes=False, reason="the coordinator is there")
        missing = f"the coordinator of term {self.term} has not been reached"
        missing += f" for {(now_ms - since_ms) / 1000:.1f} s"
        if answers.num_reaching:
            self._not_before_ms = now_ms + self._patience_ms
            others = f"{answers.num_reaching} of {answers.num_heard} others reach it"
            return SuccessionVerdict(takes=False, reason=f"{missing}, but {others}")
        if answers.num_by_coordinator > answers.num_heard:
            self._not_before_ms = now_ms + self._settings.stagger_ms
            nodes = f"it hears {answers.num_by_coordinator} nodes, and this one"
            return SuccessionVerdict(
                takes=False, reason=f"{missing}, but {nodes} hears {answers.num_heard} others"
            )
        if self._num_others and not answers.num_heard:
            alone = f"{missing}, and no other agent is heard"
            is_late = now_ms - since_ms >= self._patience_ms + self._settings.alone_ms
            return SuccessionVerdict(takes=is_late, reason=alone)
        return SuccessionVerdict(takes=True, reason=f"{missing}, by no agent that is heard")

    def tried(self, now_ms: int) -> None:
        """A coordinator was started here."""
        wait_ms = min(self._settings.start_ms * 2**self._num_tries, self._settings.max_start_ms)
        self._num_tries = min(self._num_tries + 1, 16)
        self._not_before_ms = now_ms + wait_ms
