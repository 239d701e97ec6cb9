"""A planned change on its way: groups, links to those who join, and what moves at the switch.

All of it is made on threads beside the training. A worker that joins and is fed has its state by
the time of the switch, so nothing moves then; whatever else the new plan needs elsewhere is moved
between the two steps, over one group of all workers concerned. The modules and buffers it is moved
to are there by then: what one worker would have to make at the switch, all the others wait for.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import torch

from holdfast.control.order import Order
from holdfast.engine.background import Background
from holdfast.engine.communicator import Communicator
from holdfast.engine.epoch import LiveEpoch, same_seats
from holdfast.engine.feed import Feeder
from holdfast.engine.groups import LiveGroup
from holdfast.engine.mesh import Mesh, make_mesh
from holdfast.engine.movement import Scratch, prepare_move
from holdfast.engine.state import Slice, TensorState
from holdfast.plan.feeding import given_pieces
from holdfast.plan.plan import Plan
from holdfast.plan.transfer_rounds import in_rounds
from holdfast.plan.transition import Transition, plan_transition

FeedGroups = dict[str, LiveGroup]
NewState = tuple[TensorState, dict[str, Slice], Scratch]
"""Modules of a plan, slices for them without values, and room for the messages that fill them."""


class PendingChange:
    def __init__(
        self,
        order: Order,
        plan: Plan,
        transition: Transition,
        *,
        build: Callable[[], Background[Mesh]],
        make_state: Callable[[], NewState] | None = None,
        builds_now: bool,
        makes_now: bool = True,
        meeting: Background[LiveGroup | None],
        links: Background[list[Feeder]],
    ) -> None:
        """`build` starts the making of groups, and state is made: now, or at the switch. Without
        `make_state`, the state of this worker stays as it is.
        """
        self.order, self.plan, self.transition = order, plan, transition
        self._build, self._make_state, self.meeting = build, make_state, meeting
        self._building = build() if builds_now else None
        self._making: Background[NewState] | None = None
        if makes_now and make_state is not None:
            self._making = Background(f"state of epoch {order.number}", make_state)
        self._links = links

    def building(self) -> Background[Mesh]:
        """The groups of the next plan, from the switch on at the latest."""
        if self._building is None:
            self._building = self._build()
        return self._building

    def new_state(self) -> NewState | None:
        """At the switch: made by then, or now, on the thread that trains (which device is used is
        a matter of the thread). None: the state of this worker stays as it is.
        """
        if self._making is not None:
            return self._making.result()
        return self._make_state() if self._make_state is not None else None

    @property
    def _under_way(self) -> "list[Background[Any]]":
        made = (self._building, self._making, self.meeting, self._links)
        return [background for background in made if background is not None]

    @property
    def feeders(self) -> list[Feeder]:
        return self._links.result() if self._links.is_done else []

    def is_prepared(self, step: int) -> bool:
        """Is everything made, and are those who are fed current in `step`?"""
        return all(background.is_done for background in self._under_way) and all(
            feeder.is_current(step) for feeder in self.feeders
        )

    def failure(self) -> str:
        """Why it cannot come to be any more; empty: it can."""
        return next((str(made.error) for made in self._under_way if made.has_failed), "")

    def close(self, why: str) -> None:
        """It is not entered. What is still being made is not used."""
        for feeder in self.feeders:
            feeder.close(why)


class StateMaker(Protocol):
    """(EpochBuilder) Makes what a plan's state goes into."""

    device: torch.device

    def new_state(self, plan: Plan) -> tuple[TensorState, dict[str, Slice]]: ...


class Giving(msgspec.Struct, frozen=True):
    """What a source needs to give its state away."""

    state: TensorState
    lock: Any
    """Held while state changes."""
    where: Callable[[], tuple[int, int]]
    """Version of the state, and how many updates it has had."""
    delay_ms: int = 0


def prepare_change(
    order: Order,
    plan: Plan,
    before: LiveEpoch,
    communicator: Communicator,
    maker: StateMaker,
    giving: Giving | None = None,
) -> PendingChange:
    """`giving`: of a worker with a role now, which may have to feed others."""
    number, worker = order.number, communicator.worker
    fed = [joiner.name for joiner in order.joiners]
    transition = plan_transition(before.plan, plan)
    moves = in_rounds([move for move in transition.moves if move.target not in fed])
    transition = msgspec.structs.replace(transition, moves=moves)
    concerned = dict.fromkeys((*before.plan.workers, *plan.workers))
    members = tuple(name for name in concerned if name not in fed)
    unfed = [name for name in plan.workers if name not in before.plan.seats and name not in fed]
    meets = bool(moves or unfed) and worker in members

    def meet() -> LiveGroup | None:
        if not meets:
            return None
        group = communicator.make("meeting", members, number)
        group.warm_up()
        return group

    def make_state() -> NewState:
        state, fresh = maker.new_state(plan)
        return state, fresh, prepare_move(transition, worker, before.slices, fresh)

    stays = not any(worker in (move.source, move.target) for move in moves)
    stays = stays and same_seats(worker, before.plan, plan)
    return PendingChange(
        order,
        plan,
        transition,
        build=lambda: Background(
            f"groups of epoch {number}",
            lambda: make_mesh(communicator, plan, number, before.mesh.groups, warm=True),
        ),
        make_state=None if stays else make_state,
        builds_now=communicator.connects_beside_training,
        # In the middle of a step a device may have no room for two states.
        makes_now=maker.device.type == "cpu",
        meeting=Background(f"meeting of epoch {number}", meet),
        links=Background(
            f"feeds of epoch {number}", lambda: start_feeds(communicator, order, plan, giving)
        ),
    )


def start_feeds(
    communicator: Communicator, order: Order, plan: Plan, giving: Giving | None
) -> list[Feeder]:
    """Links to those this worker feeds, made in one order by all workers; the feeds begin at
    once, in the middle of a step.
    """
    if giving is None:
        return []
    worker, links = communicator.worker, {}
    for joiner in sorted(order.joiners, key=lambda joiner: joiner.name):
        if worker in joiner.feeders:
            link = communicator.make("feed", (worker, joiner.name), order.number)
            links[joiner.name] = (joiner, link)
    return [
        Feeder(
            link,
            name,
            given_pieces(plan, name, joiner.sources).get(worker, {}),
            giving.state,
            lock=giving.lock,
            where=giving.where,
            lineage=order.lineage,
            delay_ms=giving.delay_ms,
            announces=order.from_memory,
        )
        for name, (joiner, link) in links.items()
    ]


def join_links(communicator: Communicator, order: Order, joiner: str) -> Background[FeedGroups]:
    """A joiner's links to its sources."""
    sources = next(j.feeders for j in order.joiners if j.name == joiner)

    def make() -> FeedGroups:
        return {
            source: communicator.make("feed", (source, joiner), order.number) for source in sources
        }

    return Background(f"feeds of epoch {order.number}", make)
