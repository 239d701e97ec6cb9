"""Several policies on the same failures, and how they do as clusters and failure rates grow."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.errors import HoldfastError
from holdfast.sim.cluster import peers
from holdfast.sim.cluster.events import HardwareEvent
from holdfast.sim.cluster.holdfast import holdfast, holdfast_careful
from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.pace import StepTimes
from holdfast.sim.cluster.policy import Policy
from holdfast.sim.cluster.records import Result
from holdfast.sim.cluster.run import RunSettings, SimulationRun

Maker = Callable[[StepTimes], Policy]

POLICIES: Mapping[str, Maker] = {
    "checkpoint": peers.checkpoint_restart,
    "varuna": peers.varuna,
    "bamboo": peers.bamboo,
    "oobleck": peers.oobleck,
    "recycle": peers.recycle,
    "ft-hsdp": peers.ft_hsdp,
    "chameleon": peers.chameleon,
    "resihp": peers.resihp,
    "malleus": peers.malleus,
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
    pace = StepTimes(job)
    for name in names:
        policy = POLICIES[name](pace)
        yield name, policy, SimulationRun(policy, events, settings).finish()
