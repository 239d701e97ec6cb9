"""A coordinator with workers that are nothing but their positions; messages arrive at once."""

from collections.abc import Callable

from holdfast.control.coordinator import Coordinator
from holdfast.control.effects import Effect, Explain, Record, Send, Start, Void
from holdfast.control.facts import Fact, NodeConnected, StepReported, Tick, WorkerTold
from holdfast.control.journal_entries import JournalEntry
from holdfast.control.order import Freeze, Order
from holdfast.control.report import Member, Outcome
from holdfast.control.settings import ControlSettings, ReplanSettings, SnapshotSettings
from holdfast.control.snapshots.messages import NodeHolds
from holdfast.control.worker_position import WorkerPosition
from holdfast.control.worker_reports import StepReport
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Plan
from holdfast.plan.units import TensorSpec, Unit
from holdfast.plan.workers import node_of
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.layout import Version
from holdfast.snapshot.manifest import HeldArena
from holdfast.snapshot.share import plan_digest

NO_PLANNER = ReplanSettings(policy="reroute")
"""Nothing answers what the planner is asked."""


def small_plan(replicas: int = 2, stages: int = 1, **options: object) -> Plan:
    """One worker per node, one unit per stage."""
    units = [Unit(f"block.{n}", (TensorSpec(f"block.{n}.w", (4,)),)) for n in range(stages)]
    given = {"micro_batches": replicas, "devices_per_node": 1, **options}
    return regular_plan(units, replicas=replicas, stages=stages, **given)


def outcome(step: int, epoch: int = 1) -> Outcome:
    return Outcome(
        step=step, epoch=epoch, loss=1.0, num_tokens=2, norm=1.0, clip_factor=1.0, applied=True
    )


class Job:
    def __init__(self, plan: Plan | None = None, spares: tuple[str, ...] = (), **options: object):
        self.plan = plan or small_plan()
        snapshots = SnapshotSettings(options=SnapshotOptions(job="test"))
        given = {"snapshots": snapshots, "replan": NO_PLANNER, **options}
        self.settings = ControlSettings(plan=self.plan, **given)
        self.journal: list[JournalEntry] = []
        self.positions: dict[str, WorkerPosition] = {}
        self.said: list[str] = []
        self.effects: list[Effect] = []
        self.now_ms = 0
        self.is_held: Callable[[str], bool] = lambda name: False
        """Whose messages do not arrive."""
        self.places: dict[str, list[str]] = {}
        for name in (*self.plan.workers, *spares):
            self.places.setdefault(node_of(name), []).append(name)
        self.coordinator = Coordinator(self.settings)

    @property
    def last(self) -> Order:
        order = self.coordinator._state.journal.last
        assert order is not None
        return order

    def begin(self) -> "Job":
        """Every worker is there and has entered the first order."""
        for node in self.places:
            self.connect(node)
        return self

    def complete(self, step: int = 0) -> "Job":
        """All members of the last order tell of a step."""
        for name in self.last.incarnations:
            report = StepReport(step, self.last.number, 0.5, 2.0, 1.0, 64, 1e-3, True)
            self.take(StepReported(self.member(name), report))
        return self

    def connect(self, node: str, **fields: object) -> None:
        states = tuple(
            position.state() for name, position in self.positions.items() if node_of(name) == node
        )
        places = tuple(self.places[node])
        self.take(NodeConnected(node=node, agent="a1", places=places, workers=states, **fields))

    def arenas(self, node: str, version: int, epoch: int = 1) -> tuple[HeldArena, ...]:
        """What a node holds of a version, of the workers that have a seat in the plan."""
        digest, versions = plan_digest(self.plan), (Version(version, epoch),)
        names = [name for name in self.places[node] if name in self.plan.seats]
        return tuple(HeldArena(name, digest, versions) for name in names)

    def hold(self, version: int, *nodes: str, epoch: int = 1) -> None:
        """These nodes, or all, have a version in their memory."""
        for node in nodes or tuple(self.places):
            self.take(NodeHolds(node=node, arenas=self.arenas(node, version, epoch)))

    def restart(self) -> None:
        """A new coordinator, which knows nothing but the journal."""
        self.coordinator = Coordinator(self.settings, list(self.journal))

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.take(Tick())

    def pass_time(self, ms: int, step_ms: int = 500) -> None:
        """Ticks, as often as they come in a job."""
        for _ in range(ms // step_ms):
            self.coordinator.next_deadline_ms(self.now_ms)
            self.tick(step_ms)

    def pause(self, ms: int, fact: Fact | None = None) -> None:
        """The coordinator is stopped for so long; then it is told this first."""
        self.coordinator.next_deadline_ms(self.now_ms)
        self.now_ms += ms
        self.take(fact or Tick())

    def tell(self, name: str) -> None:
        self.take(WorkerTold(self.positions[name].state()))

    def take(self, fact: Fact) -> list[Effect]:
        effects = self.coordinator.take(fact, self.now_ms)
        self.effects += effects
        for effect in effects:
            match effect:
                case Record(entry=entry):
                    self.journal.append(entry)
                case Explain(text=text):
                    self.said.append(text)
        for effect in effects:
            self._carry_out(effect)
        return effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Start(member=member):
                self.positions[member.name] = WorkerPosition(member)
                self.tell(member.name)
            case Send(member=member, message=message):
                position = self.positions.get(member.name)
                is_there = position is not None and position.member == member
                if is_there and not self.is_held(member.name):
                    self._deliver(position, message)

    def _deliver(self, position: WorkerPosition, message: object) -> None:
        match message:
            case Freeze():
                position.on_freeze(message)
            case Void(number=number):
                position.on_void(number)
            case Order(kind="change"):
                if position.accepts(message)[0]:
                    position.prepare(message)
            case Order():
                if position.accepts(message)[0]:
                    share = message.share
                    if share is not None and position.version < share.step:
                        position.applied(share.outcome)
                    position.enter(message)
        self.tell(position.member.name)

    def sent(self, kind: type) -> list[Send]:
        return [e for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def member(self, name: str) -> Member:
        return self.positions[name].member
