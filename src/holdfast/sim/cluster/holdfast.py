"""Holdfast's own policy: the planner decides, joiners stop no training, lost work is a share.

After a failure the step under way is completed from the gradients still in memory; only the lost
micro-batches are computed again, by all pipelines. A worker that returns joins in the background,
unit by unit, and takes part from a step boundary on.
"""

import msgspec

from holdfast.planner.peers.system import SPARE_START_MS, RecoveryConstants, SystemCard
from holdfast.sim.cluster.detection import EXIT_MS, SLOW_STEPS, hang_ms
from holdfast.sim.cluster.health import ClusterDamage
from holdfast.sim.cluster.planning import ClusterModel, PlannedThroughput, PlannerAdvisor
from holdfast.sim.cluster.policy import Facts, Policy, PolicyDecision, describe, move_ms, stall
from holdfast.sim.cluster.rules import HEALTHY

CARD = SystemCard(
    name="Holdfast",
    rule="the planner's best candidate by expected useful throughput until the next change; "
    "joiners catch up in the background",
    source="planner/decision.py, detect/progress.py",
    limits="the planner is asked for its quick answer (one round of search) about a part of the "
    "cluster, always from the undisturbed plan; group times are extrapolated from measured ones, "
    "joining times are assumed",
)


GROUPS_MS = 850
"""Measured, from a fault to the next step, less a step and the work that is done again: groups with
a lost member are broken off, and made anew without it (bench/gpu_fault.py, H200, NCCL: at most
0.84 s). Groups without it live on, so this does not grow with the cluster.
"""
ORDER_MS_PER_NODE = 0.325
"""Measured with 2,000 agents, from a death to the last one's order (bench/control.py: 0.65 s, of
which 0.49 s are the coordinator's processor time). All nodes are told, one by one, so it grows with
their number: 4.1 s for the 12,500 nodes of 100,000 devices.
"""


def groups_ms(num_nodes: int) -> int:
    return round(GROUPS_MS + ORDER_MS_PER_NODE * num_nodes)


def holdfast_costs(model: ClusterModel) -> RecoveryConstants:
    longest = model.stage_ms * 2 / 3
    return RecoveryConstants(
        exit_ms=EXIT_MS,
        hang_ms=hang_ms(round(longest)),
        slow_steps=SLOW_STEPS,
        plan_ms=1_000,
        groups_ms=groups_ms(model.job.nodes),
        join_ms=SPARE_START_MS + 30_000,
        save_share=0.01,
        source="exit 0.3 s and slow 5 steps (goals), hang: the progress watch itself; planning 1 s "
        "(goal for 16,384 devices); groups 0.85 s, as measured on one node, and 0.325 ms for every "
        "node's order, as measured with 2,000, or the planner's estimate; "
        "spare node 120 s, then 30 s to catch up (assumed); saving 1 % (limit of the snapshotter)",
    )


class Holdfast(Policy):
    def __init__(self, model: ClusterModel) -> None:
        super().__init__(model)
        self.stage_ms = model.stage_ms
        self.card = CARD
        self.costs = holdfast_costs(model)
        self.advisor = PlannerAdvisor(model)

    def decide(self, facts: Facts) -> PolicyDecision:
        situation = facts.situation
        if not situation.pipelines:
            return PolicyDecision(
                strategy=HEALTHY,
                reason=f"{facts.change}: nothing is missing",
                rate=1.0,
                rate_at_full_speed=1.0,
                stall=self._stall(facts.change, 0),
            )
        answer = self._answer(facts)
        return PolicyDecision(
            strategy=answer.strategy,
            reason=f"{describe(situation, self.job.tensor)}: {answer.reason}",
            rate=answer.rate,
            rate_at_full_speed=self._at_full_speed(situation, facts.mtbf_ms, answer),
            stall=self._stall(facts.change, answer.change_ms),
            rollback=answer.restores and facts.change == "failed",
            join_ms=self.costs.join_ms,
        )

    def _answer(self, facts: Facts) -> PlannedThroughput:
        """The planner's answer. It sees all losses at once; where it misses the last copy of
        something, but the losses since the last decision left one, state only has to move.
        """
        answer = self.advisor.ask(facts.situation.hurts, facts.mtbf_ms)
        fresh = facts.fresh.hurts
        if not answer.restores or (fresh and self.advisor.ask(fresh, facts.mtbf_ms).restores):
            return answer
        return PlannedThroughput(
            "arrange",
            "copies lost earlier were made up for: state moves, nothing is restored",
            answer.rate,
            self.costs.groups_ms + move_ms(self.job),
        )

    def _at_full_speed(
        self, situation: ClusterDamage, mtbf_ms: float, answer: PlannedThroughput
    ) -> float:
        if not situation.has_slow:
            return answer.rate
        return self.advisor.ask(situation.losses(self.job.tensor), mtbf_ms).rate

    def _stall(self, change: str, change_ms: int) -> tuple[tuple[str, int], ...]:
        """A planned change is prepared in the background and switched at a step boundary: only a
        failure stops training. State that has to move is waited for in either case.
        """
        costs = self.costs
        moving = max(0, change_ms - costs.groups_ms)
        if change == "failed":
            return stall(
                planning=costs.plan_ms,
                groups=costs.groups_ms,
                moving_state=moving,
                lost_work=self.lost_work_ms(),
            )
        return stall(moving_state=moving) if change in ("slowed", "recovered") else ()

    def lost_work_ms(self) -> int:
        """The micro-batches of one pipeline, spread over all others: one more passes each."""
        share = -(-self.job.micro_batches // max(1, self.job.pipelines - 1))
        return round((share + self.job.stages - 1) * self.stage_ms)


def holdfast(model: ClusterModel) -> Policy:
    return Holdfast(model)


def holdfast_careful(model: ClusterModel) -> Policy:
    """The same decisions with FT-HSDP's delays: what is left if none of Holdfast's own constants
    can be kept at 100,000 devices.
    """
    policy = Holdfast(model)
    policy.card = msgspec.structs.replace(
        CARD,
        name="Holdfast, slow delays",
        rule="as Holdfast, but detection, groups and joining take as long as FT-HSDP's",
    )
    policy.costs = msgspec.structs.replace(
        policy.costs,
        exit_ms=60_000,
        hang_ms=60_000,
        groups_ms=120_000,
        join_ms=540_000,
        source="FT-HSDP's: detect 60 s, groups 120 s, back after 10 min; the rest as Holdfast",
    )
    return policy
