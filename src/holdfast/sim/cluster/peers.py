"""The policy of a published system, from its description in `planner/peers`."""

from collections.abc import Sequence

from holdfast.planner.peers.system import REPLICAS, RESTART, JobFacts, PeerSystem, RecoveryConstants
from holdfast.sim.cluster.planning import ClusterModel, PeerAdvisor
from holdfast.sim.cluster.policy import Policy, StepModel, move_ms
from holdfast.sim.cluster.rules import Adaptive, Replicas, Restart


def constants_of(system: PeerSystem, model: StepModel) -> RecoveryConstants:
    job = model.job
    facts = JobFacts(num_devices=job.devices, step_ms=model.step_ms, move_ms=move_ms(job))
    return system.constants(facts)


def peer_policy(system: PeerSystem, model: ClusterModel, schedules: Sequence[str] = ()) -> Policy:
    """`schedules` it may use; empty: those that the planner itself would search."""
    costs = constants_of(system, model)
    if system.reaction == REPLICAS:
        return Replicas(model, system.card, costs)
    advisor = PeerAdvisor(model, system, costs, schedules)
    if system.reaction == RESTART:
        return Restart(advisor, system.card, costs)
    return Adaptive(advisor, system.card, costs, whole_teams=system.whole_teams)
