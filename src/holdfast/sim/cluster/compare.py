"""Several policies on the same failures, and how they do as clusters and failure rates grow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from holdfast.errors import HoldfastError
from holdfast.planner.peers.systems import PEERS
from holdfast.sim.cluster.events import HardwareEvent
from holdfast.sim.cluster.holdfast import holdfast, holdfast_careful
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.peers import peer_policy
from holdfast.sim.cluster.planning import ClusterModel
from holdfast.sim.cluster.policy import Policy
from holdfast.sim.cluster.records import Result
from holdfast.sim.cluster.run import RunSettings, SimulationRun

PolicyMaker = Callable[[ClusterModel], Policy]

POLICIES: Mapping[str, PolicyMaker] = {
    **{system.key: partial(peer_policy, system) for system in PEERS},
    "holdfast-slow": holdfast_careful,
    "holdfast": holdfast,
}


def choose_policies(text: str) -> tuple[str, ...]:
    """`all`, or names with commas between them."""
    names = tuple(POLICIES) if text == "all" else tuple(text.split(","))
    for name in names:
        if name not in POLICIES:
            raise HoldfastError(f"policy {name!r} is unknown; known: all, {', '.join(POLICIES)}")
    return names


def run_policies(
    job: SimulatedJob, events: Sequence[HardwareEvent], settings: RunSettings, names: Sequence[str]
) -> Iterator[tuple[str, Policy, Result]]:
    """One result after the other, so that a caller can show progress."""
    model = ClusterModel(job)
    for name in names:
        policy = POLICIES[name](model)
        yield name, policy, SimulationRun(policy, events, settings).finish()
