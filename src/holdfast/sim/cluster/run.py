"""One policy through one list of events.

Between events nothing changes, so time is skipped: the run is a heap of moments at which something
happens (a device fails or slows down, that becomes known, a repair ends, a node has joined). A
failure of a device in use stops training at once. When it is known the policy decides; its stall
begins; a failure during the stall stops it and begins the next. Training then goes on at the
decided pace until the next moment.

Spares are counted in nodes. A node that needs repair is replaced by a spare if there is one, and
becomes a spare itself when it is repaired.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt

import msgspec

from holdfast.errors import invariant
from holdfast.observe.goodput import GoodputAccount
from holdfast.sim.cluster.events import KILLED, PREEMPTED, Cause, HardwareEvent
from holdfast.sim.cluster.health import ClusterHealth
from holdfast.sim.cluster.policy import Facts, Policy, PolicyDecision, describe
from holdfast.sim.cluster.records import Result, SimulatedDecision, ThroughputSpan

PRIOR_WEIGHT = 4.0
"""The assumed time between failures counts as much as so many observed ones."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    length_ms: int
    mtbf_ms: int = 3_600_000
    """Prior for the policies' own estimate."""
    save_every_ms: int = 0
    """Between two checkpoints; 0 = Young's interval."""


class SimulationRun:
    def __init__(
        self, policy: Policy, events: Sequence[HardwareEvent], settings: RunSettings
    ) -> None:
        self.policy, self.settings = policy, settings
        self.job = policy.job
        self.health = ClusterHealth(self.job)
        self.account = GoodputAccount()
        self.spares = self.job.spare_nodes
        self.joining: dict[int, int] = {}
        """Nodes on their way back, with the number of their attempt."""
        self.now_ms = 0
        self.stall: deque[tuple[str, int]] = deque()
        self.num_unknown = 0
        """Failures that stop training and are not known yet."""
        self.decided_on: frozenset[int] = frozenset()
        """Devices that were gone at the last decision."""
        self.losses: dict[str, float] = {}
        self.unsaved_ms = self.since_save_ms = 0.0
        self.journal: list[SimulatedDecision] = []
        self.spans: list[ThroughputSpan] = []
        self.num_failures = 0
        self.chosen: Counter[str] = Counter()
        self.num_decisions = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._seed(events)

    # The heap of moments.

    def _at(self, time_ms: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time_ms, self._number, action))

    def _seed(self, events: Sequence[HardwareEvent]) -> None:
        """Events at time 0 are how the run begins; the others wait for their time."""
        for event in events:
            if event.time_ms == 0 and event.kind == "failed":
                self.health.lose(event.devices, event.cause)
            else:
                self._at(event.time_ms, partial(self._happen, event))
        first = self._decide("started", KILLED, count=False)
        self._set_pace(first)

    def finish(self) -> Result:
        while self._heap and self._heap[0][0] < self.settings.length_ms:
            time_ms, _, action = heapq.heappop(self._heap)
            self._advance(time_ms)
            action()
        self._advance(self.settings.length_ms)
        return Result(
            policy=self.policy.card.name,
            budget=self.account.budget(),
            journal=tuple(self.journal),
            spans=tuple(self.spans),
            num_failures=self.num_failures,
            strategies=dict(sorted(self.chosen.items())),
        )

    # Time.

    def _advance(self, to_ms: int) -> None:
        """Account for the time until `to_ms`: waiting for news, a stall, or training."""
        invariant(to_ms >= self.now_ms, f"time goes back from {self.now_ms} to {to_ms} ms")
        if self.num_unknown:
            self._pass("detection", to_ms - self.now_ms)
        while self.stall and self.now_ms < to_ms:
            cause, left_ms = self.stall.popleft()
            span_ms = min(left_ms, to_ms - self.now_ms)
            self._pass(cause, span_ms)
            if span_ms < left_ms:
                self.stall.appendleft((cause, left_ms - span_ms))
        if self.now_ms < to_ms:
            self._train(to_ms - self.now_ms)

    def _pass(self, cause: str, span_ms: int) -> None:
        self.account.lose(cause, span_ms)
        self._span(span_ms, 0.0)

    def _train(self, span_ms: int) -> None:
        productive = self.account.train(span_ms, self.losses)
        self._span(span_ms, productive / span_ms)
        self._save(span_ms, productive)

    def _save(self, span_ms: int, productive_ms: float) -> None:
        """What would be lost by going back to the last checkpoint. From one to the next it takes
        the interval and the time of saving.
        """
        period = self._interval_ms() + self.policy.costs.save_ms
        self.since_save_ms += span_ms
        if period and self.since_save_ms >= period:
            self.since_save_ms %= period
            self.unsaved_ms = self.since_save_ms * productive_ms / span_ms
        else:
            self.unsaved_ms += productive_ms

    def _interval_ms(self) -> float:
        """From the end of a checkpoint to the begin of the next: as asked for from one to the
        next, or Young's, for the time between failures assumed first.
        """
        save_ms = self.policy.costs.save_ms
        if self.settings.save_every_ms:
            return max(0, self.settings.save_every_ms - save_ms)
        step_ms = self.policy.model.step_ms
        return max(step_ms, sqrt(2 * save_ms * self.settings.mtbf_ms)) if save_ms else step_ms

    def _span(self, span_ms: int, rate: float) -> None:
        start_ms, self.now_ms = self.now_ms, self.now_ms + span_ms
        if not span_ms:
            return
        last = self.spans[-1] if self.spans else None
        if last is not None and abs(last.rate - rate) < 1e-12:
            self.spans[-1] = ThroughputSpan(last.start_ms, self.now_ms, rate)
        else:
            self.spans.append(ThroughputSpan(start_ms, self.now_ms, rate))

    # What happens.

    def _happen(self, event: HardwareEvent) -> None:
        if event.kind == "failed":
            self._fail(event)
        elif event.kind == "slowed":
            self._slow(event)
        else:
            self.spares += len(self._nodes(event.devices))
            self._note(event.kind, event.devices, event.cause.name)
            self._learn("returned", event.cause)

    def _fail(self, event: HardwareEvent) -> None:
        in_use = self._in_use(event.devices)
        taken = self.health.lose(event.devices, event.cause)
        if event.last_ms:
            returned = msgspec.structs.replace(event, kind="returned", last_ms=0)
            self._at(self.now_ms + event.last_ms, lambda: self._happen(returned))
        if not taken:
            # Gone already: in a trace of spot instances a waiting node is taken away.
            self.spares -= min(self.spares, event.cause is PREEMPTED)
            return
        self._note("failed", event.devices, event.cause.name)
        known_ms = self.now_ms + self.policy.delay_ms(event.cause)
        if not in_use:
            self._at(known_ms, lambda: self._learn("failed unused", event.cause))
            return
        self.num_failures += 1
        self.stall.clear()
        self.num_unknown += 1
        self._at(known_ms, lambda: self._know(event.cause))

    def _in_use(self, devices: Sequence[int]) -> bool:
        """Does training use any of these devices?"""
        situation = self.health.situation()
        seats = {self.job.seat(d) for d in devices if d not in self.health.gone}
        return any(not self.policy.is_idle(situation, *seat) for seat in seats)

    def _know(self, cause: Cause) -> None:
        """A failure has become known. While another one has not, there is nothing to decide."""
        self.num_unknown -= 1
        if not self.num_unknown:
            self._learn("failed", cause)

    def _slow(self, event: HardwareEvent) -> None:
        self.health.slow_down(event.devices, event.factor)
        self._note("slowed", event.devices, event.cause.name)
        self._at(self.now_ms + event.last_ms, lambda: self._recover(event))
        self._drift()
        if self.policy.handles_slow:
            delay_ms = self.policy.delay_ms(event.cause)
            self._at(self.now_ms + delay_ms, lambda: self._notice("slowed", event.cause))

    def _recover(self, event: HardwareEvent) -> None:
        self.health.speed_up(event.devices)
        self._note("recovered", event.devices, event.cause.name)
        self._follow_pace()
        delay_ms = self.policy.delay_ms(event.cause)
        self._at(self.now_ms + delay_ms, lambda: self._notice("recovered", event.cause))

    def _notice(self, change: str, cause: Cause) -> None:
        """A change of speed is known, or will be."""
        if wait_ms := self.policy.unnoticed_ms(self.now_ms):
            self._at(self.now_ms + wait_ms, lambda: self._notice(change, cause))
        else:
            self._learn(change, cause)

    def _drift(self) -> None:
        """A device became slow and that is not known yet: the slowest pipeline sets the pace."""
        if self._follow_pace():
            return
        rate = 1.0 - sum(self.losses.values())
        lost = rate - min(rate, self.policy.slow_rate(self.health.situation()))
        if lost > 0:
            slow = self.losses.get("slow devices", 0.0) + lost
            self.losses = self.losses | {"slow devices": slow}

    def _follow_pace(self) -> bool:
        """Devices have changed under the plan in force; False: the policy does not say more."""
        rate = self.policy.pace(self.health.situation(), self.now_ms)
        if rate is None:
            return False
        self.losses = {"slow devices" if rate <= 1.0 else "faster plan": 1.0 - rate}
        return True

    # Decisions.

    def _learn(self, change: str, cause: Cause) -> None:
        """Something is known: the policy decides, unless a failure is still unknown."""
        if self.num_unknown:
            return
        decision = self._decide(change, cause)
        if decision.rollback and change == "failed":
            self.account.waste(self.unsaved_ms)
            self.unsaved_ms = self.since_save_ms = 0.0
        if change == "failed":
            self.stall.clear()
        self.stall.extend(decision.stall)
        self._set_pace(decision)
        if decision.rejoin_now:
            for node in self._replaceable():
                self._take_back(node)
        elif decision.join_ms >= 0:
            for node in self._replaceable():
                self._start_join(node, self.now_ms + decision.join_ms)

    def _decide(self, change: str, cause: Cause, count: bool = True) -> PolicyDecision:
        replaceable = self._replaceable()
        facts = Facts(
            now_ms=self.now_ms,
            job=self.job,
            situation=self.health.situation(),
            change=change,
            cause=cause,
            num_replaceable=len(replaceable),
            after_rejoin=self.health.with_nodes(replaceable),
            fresh=self.health.lost_since(self.decided_on),
            mtbf_ms=self._mtbf_ms(),
        )
        decision = self.policy.decide(facts)
        self.num_decisions += 1
        self.decided_on = frozenset(self.health.gone)
        if count:
            self.chosen[decision.strategy] += 1
            self.journal.append(
                SimulatedDecision(
                    time_ms=self.now_ms,
                    event="decided",
                    subject=describe(facts.situation, self.job.tensor),
                    strategy=decision.strategy,
                    rate=decision.rate,
                    stall_ms=sum(span for _, span in decision.stall),
                    reason=decision.reason,
                )
            )
        return decision

    def _set_pace(self, decision: PolicyDecision) -> None:
        """Of the decided plan, at once or when it is entered, if nothing else is decided before."""
        reflex_ms, rate = decision.reflex
        if not reflex_ms:
            self._set_rate(decision)
            return
        number = self.num_decisions
        self._set_rate(msgspec.structs.replace(decision, rate=rate, rate_at_full_speed=rate))

        def enter() -> None:
            if number == self.num_decisions:
                self._set_rate(decision)
                self._follow_pace()

        self._at(self.now_ms + reflex_ms, enter)

    def _set_rate(self, decision: PolicyDecision) -> None:
        """Split what is missing to the healthy pace by its causes."""
        steady = self.policy.steady
        saving = self._saving_share()
        if not decision.rate:
            self.losses = {"waiting for devices": 1.0}
            return
        full = min(steady, max(decision.rate_at_full_speed, decision.rate))
        self.losses = {
            "saving": saving,
            "redundancy": (1 - steady) * (1 - saving),
            "missing devices": (steady - full) * (1 - saving),
            "slow devices": max(0.0, full - decision.rate) * (1 - saving),
            "faster plan": min(0.0, full - decision.rate) * (1 - saving),
        }

    def _saving_share(self) -> float:
        save_ms = self.policy.costs.save_ms
        share = save_ms / (save_ms + self._interval_ms()) if save_ms else 0.0
        return share + self.policy.costs.save_share

    def _mtbf_ms(self) -> float:
        seen = PRIOR_WEIGHT * self.settings.mtbf_ms + self.now_ms
        return seen / (PRIOR_WEIGHT + self.num_failures)

    # Nodes that come back.

    def _replaceable(self) -> list[int]:
        """Nodes that are gone and could come back now, as far as spares last."""
        spares, nodes = self.spares, []
        for node in self.health.gone_nodes():
            if node in self.joining:
                continue
            if not self._needs_spare(node):
                nodes.append(node)
            elif spares:
                spares -= 1
                nodes.append(node)
        return nodes

    def _needs_spare(self, node: int) -> bool:
        devices = self.job.node_devices(node)
        gone = [self.health.gone[d] for d in devices if d in self.health.gone]
        return any(cause.repair for cause in gone)

    def _coming_back(self, node: int) -> Sequence[int]:
        """All devices of a node that is replaced; where a restart is enough, those it lacks."""
        devices = self.job.node_devices(node)
        if self._needs_spare(node):
            return devices
        return [device for device in devices if device in self.health.gone]

    def _take_back(self, node: int) -> None:
        devices = self._coming_back(node)
        if self._needs_spare(node):
            self.spares -= 1
        self.health.restore(devices)

    def _start_join(self, node: int, time_ms: int) -> None:
        if self._needs_spare(node):
            self.spares -= 1
        self._number += 1
        attempt = self.joining[node] = self._number
        self._at(time_ms, lambda: self._joined(node, attempt))

    def _joined(self, node: int, attempt: int) -> None:
        if self.joining.get(node) != attempt:
            return
        del self.joining[node]
        devices = self._coming_back(node)
        why = "a spare in its place" if self._needs_spare(node) else "restarted"
        self.health.restore(devices)
        self._note("joined", devices, why)
        self._learn("joined", KILLED)

    def _nodes(self, devices: Sequence[int]) -> list[int]:
        return sorted({self.job.node_of(device) for device in devices})

    def _note(self, event: str, devices: Sequence[int], why: str) -> None:
        nodes = self._nodes(devices)
        place = f"n{nodes[0]}" + (f"-{nodes[-1]}" if len(nodes) > 1 else "")
        if len(devices) == 1:
            place += f".g{devices[0] % self.job.devices_per_node}"
        self.journal.append(
            SimulatedDecision(time_ms=self.now_ms, event=event, subject=place, reason=why)
        )
