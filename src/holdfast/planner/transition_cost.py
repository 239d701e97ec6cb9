"""A transition made ready to run: its moves in rounds without conflicts, and how long it takes."""

from collections.abc import Collection

import msgspec

from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile, link_between
from holdfast.plan.transfer_rounds import Flow, move_rounds
from holdfast.plan.transition import Transition, plan_transition
from holdfast.planner.score import ChangeCosts


class Movement(msgspec.Struct, frozen=True):
    transition: Transition
    rounds: tuple[tuple[Flow, ...], ...]
    moving: float
    """Time of all rounds, each as long as its longest flow."""
    regrouping: float
    """Time of the worker that has most groups to make."""

    @property
    def time(self) -> float:
        return self.moving + self.regrouping


DEFAULT = ChangeCosts()


def plan_movement(
    old: Plan,
    new: Plan,
    dead: Collection[str] = (),
    profile: Profile = Profile(),
    costs: ChangeCosts = DEFAULT,
) -> Movement:
    """From plan to plan. A HoldfastError where the last copy of something is gone."""
    transition = plan_transition(old, new, dead)
    rounds = move_rounds(transition.moves)
    moving = sum(max(_duration(flow, profile) for flow in flows) for flows in rounds)
    counts: dict[str, int] = {}
    for group in transition.new_groups:
        for worker in group.members:
            counts[worker] = counts.get(worker, 0) + 1
    regrouping = costs.rendezvous + costs.group * max(counts.values()) if counts else 0.0
    return Movement(transition, rounds, moving, regrouping)


def _duration(flow: Flow, profile: Profile) -> float:
    link = link_between(profile, flow.source, flow.target)
    return link.latency + link.occupancy(flow.num_bytes)
