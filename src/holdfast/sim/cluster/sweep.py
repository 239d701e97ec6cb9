"""How policies do when one thing changes: the size of the cluster, the rate of failures, or the
situation itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from holdfast.sim.cluster.events import KILLED, SLOW
from holdfast.sim.cluster.hazards import GROUP_NODES, SLOW_FACTORS, HazardRates, draw_events
from holdfast.sim.cluster.health import ClusterDamage, ClusterHealth
from holdfast.sim.cluster.job import SimulatedJob, usual_replicas, usual_spares
from holdfast.sim.cluster.planning import ClusterModel
from holdfast.sim.cluster.policy import Facts, Policy
from holdfast.sim.cluster.run import RunSettings, SimulationRun

Makers = Mapping[str, Callable[[ClusterModel], Policy]]

SCALES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)
GAPS = (1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)


class Point(msgspec.Struct, frozen=True):
    """One policy at one place of a sweep."""

    x: float
    policy: str
    goodput: float


def scaled(job: SimulatedJob, share: float) -> SimulatedJob:
    """The same job over a share of the pipelines."""
    pipelines = max(2, round(job.pipelines * share))
    replicas = usual_replicas(pipelines)
    nodes = -(-pipelines * job.stages * job.tensor // job.devices_per_node)
    return msgspec.structs.replace(
        job,
        replicas=replicas,
        chains=pipelines // replicas,
        spare_nodes=usual_spares(nodes) if job.spare_nodes else 0,
    )


def sweep_scale(
    job: SimulatedJob, rates: HazardRates, length_ms: int, seed: int, makers: Makers
) -> Iterator[Point]:
    """Smaller clusters of the same devices: failures are rarer in proportion."""
    sizes = {small.devices: small for small in (scaled(job, share) for share in SCALES)}
    for devices, small in sorted(sizes.items()):
        gap_ms = round(rates.mtbf_ms * job.devices / devices)
        slow_ms = round(rates.slow_ms * job.devices / devices)
        changed = msgspec.structs.replace(rates, mtbf_ms=gap_ms, slow_ms=slow_ms)
        for name, goodput in _goodputs(_policies(small, makers), changed, length_ms, seed):
            yield Point(devices, name, goodput)


def sweep_rate(
    job: SimulatedJob, rates: HazardRates, length_ms: int, seed: int, makers: Makers
) -> Iterator[Point]:
    """The same cluster with more and with fewer failures; x is minutes between them."""
    policies = _policies(job, makers)
    for factor in GAPS:
        changed = msgspec.structs.replace(rates, mtbf_ms=max(1, round(rates.mtbf_ms * factor)))
        for name, goodput in _goodputs(policies, changed, length_ms, seed):
            yield Point(changed.mtbf_ms / 60_000, name, goodput)


def _policies(job: SimulatedJob, makers: Makers) -> dict[str, Policy]:
    """They keep no state of a run, only what they have worked out."""
    model = ClusterModel(job)
    return {name: maker(model) for name, maker in makers.items()}


def _goodputs(
    policies: Mapping[str, Policy], rates: HazardRates, length_ms: int, seed: int
) -> Iterator[tuple[str, float]]:
    job = next(iter(policies.values())).job
    events = draw_events(job, rates, length_ms, seed)
    settings = RunSettings(length_ms=length_ms, mtbf_ms=rates.mtbf_ms)
    for name, policy in policies.items():
        yield name, SimulationRun(policy, events, settings).finish().goodput


class SweepCell(msgspec.Struct, frozen=True):
    """What a policy does in a situation."""

    situation: str
    policy: str
    strategy: str
    rate: float
    stall_ms: int


def situations(job: SimulatedJob) -> dict[str, ClusterDamage]:
    """Typical situations by name, as far as the job is large enough for them."""
    seat, chain = job.tensor, job.stages * job.tensor
    middle = job.stages // 2 * seat
    switch = min(GROUP_NODES, job.nodes) * job.devices_per_node
    losses: dict[str, Sequence[int]] = {
        "1 device lost": (middle,),
        "1 node lost": job.node_devices(job.node_of(middle)),
        "2 devices of a pipeline": (0, chain - 1),
        "2 pipelines, same stage": (middle, chain + middle),
        "2 pipelines, different stages": (middle, 2 * chain - 1),
        f"{GROUP_NODES} nodes of a switch": range(switch),
    }
    found: dict[str, ClusterDamage] = {}
    for name, devices in losses.items():
        health = ClusterHealth(job)
        health.lose([device for device in devices if device < job.devices], KILLED)
        if len(health.gone) < job.devices:
            found[name] = health.situation()
    for factor in SLOW_FACTORS:
        health = ClusterHealth(job)
        health.slow_down((middle,), factor)
        found[f"1 device at {1 / factor:.0%}"] = health.situation()
    return found


def situation_cells(job: SimulatedJob, mtbf_ms: int, makers: Makers) -> Iterator[SweepCell]:
    policies = _policies(job, makers)
    for title, situation in situations(job).items():
        for name, policy in policies.items():
            yield _cell(title, name, policy, situation, mtbf_ms)


def _cell(
    title: str, name: str, policy: Policy, situation: ClusterDamage, mtbf_ms: int
) -> SweepCell:
    slow = not situation.broken(policy.job.tensor)
    if slow and not policy.handles_slow:
        return SweepCell(title, name, "not noticed", policy.slow_rate(situation), 0)
    facts = Facts(
        now_ms=0,
        job=policy.job,
        situation=situation,
        change="slowed" if slow else "failed",
        cause=SLOW if slow else KILLED,
        num_replaceable=0,
        after_rejoin=situation,
        fresh=situation,
        mtbf_ms=mtbf_ms,
    )
    decision = policy.decide(facts)
    stall_ms = sum(span for _, span in decision.stall)
    return SweepCell(title, name, decision.strategy, decision.rate, stall_ms)
