"""One policy through one list of events: time, spares, and a second implementation."""

import math
import random

import pytest

from holdfast.planner.peers.system import RecoveryConstants
from holdfast.planner.peers.systems import CHECKPOINT, FT_HSDP, RESIHP
from holdfast.sim.cluster.events import KILLED, PREEMPTED, SLOW, Cause, HardwareEvent
from holdfast.sim.cluster.hazards import HazardRates, draw_events
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.peers import constants_of, peer_policy
from holdfast.sim.cluster.planning import ClusterModel
from holdfast.sim.cluster.rules import Replicas
from holdfast.sim.cluster.run import RunSettings, SimulationRun
from support.sim_jobs import HOUR, MINUTE, KnownSteps, Scripted, small_job

STEPS = KnownSteps(small_job())
RESTARTED = Cause("bug", 1, "device", "exit", False)


def failed(time_ms: int, *devices: int, cause: Cause = KILLED, last_ms: int = 0) -> HardwareEvent:
    return HardwareEvent(
        time_ms=time_ms, kind="failed", devices=devices, cause=cause, last_ms=last_ms
    )


def run(policy, *events: HardwareEvent, length_ms: int = 100_000):
    machine = SimulationRun(policy, events, RunSettings(length_ms=length_ms))
    return machine, machine.finish()


def test_without_events_everything_is_productive():
    _, result = run(Scripted(STEPS))
    assert result.goodput == 1.0
    assert result.num_failures == 0


def test_a_failure_costs_detection_stall_and_what_is_missing():
    policy = Scripted(STEPS, stall=[("groups", 4_000)])
    _, result = run(policy, failed(10_000, 0))
    assert [(s.start_ms, s.end_ms, s.rate) for s in result.spans] == [
        (0, 10_000, 1.0),
        (10_000, 15_000, 0.0),
        (15_000, 100_000, 0.75),
    ]
    lost = result.budget.lost_ms
    assert (lost["detection"], lost["groups"], lost["missing devices"]) == (1_000, 4_000, 21_250)


def test_a_failure_during_a_stall_begins_the_next():
    policy = Scripted(STEPS, stall=[("groups", 10_000)])
    _, result = run(policy, failed(10_000, 0), failed(15_000, 8))
    assert result.budget.lost_ms["groups"] == 4_000 + 10_000
    assert result.budget.lost_ms["detection"] == 2_000
    assert [s.rate for s in result.spans] == [1.0, 0.0, 0.5]


def test_the_decision_waits_for_the_last_unknown_failure():
    policy = Scripted(STEPS)
    run(policy, failed(10_000, 0), failed(10_500, 8))
    assert [f.now_ms for f in policy.asked] == [0, 11_500]
    assert len(policy.asked[1].situation.pipelines) == 2


def test_a_dead_device_cannot_die_again():
    _, result = run(Scripted(STEPS), failed(10_000, 0), failed(20_000, 0))
    assert result.num_failures == 1


def test_restarted_nodes_join_without_a_spare():
    machine, result = run(Scripted(STEPS, join_ms=5_000), failed(10_000, 0, cause=RESTARTED))
    assert [r.time_ms for r in result.journal if r.event == "joined"] == [16_000]
    assert result.spans[-1].rate == 1.0
    assert machine.spares == 0


def test_broken_nodes_wait_for_a_spare_or_their_repair():
    _, waiting = run(Scripted(STEPS, join_ms=5_000), failed(10_000, 0, last_ms=40_000))
    assert [r.time_ms for r in waiting.journal if r.event == "joined"] == [55_000]
    spared = KnownSteps(small_job(spare_nodes=1))
    machine, result = run(Scripted(spared, join_ms=5_000), failed(10_000, 0, last_ms=40_000))
    assert [r.time_ms for r in result.journal if r.event == "joined"] == [16_000]
    assert machine.spares == 1  # taken, and given back by the repair


def test_a_node_that_leaves_while_it_waits_is_no_spare():
    back = HardwareEvent(time_ms=20_000, kind="returned", devices=(0, 1), cause=PREEMPTED)
    policy = Scripted(STEPS)
    first = failed(10_000, 0, 1, cause=PREEMPTED)
    machine, _ = run(policy, first, back)
    assert machine.spares == 1
    machine, _ = run(Scripted(STEPS), first, back, failed(30_000, 0, 1, cause=PREEMPTED))
    assert machine.spares == 0


def test_absent_devices_at_the_start_cost_no_stall():
    _, result = run(Scripted(STEPS, stall=[("groups", 9_000)]), failed(0, 0))
    assert result.budget.lost_ms == {"missing devices": 25_000}


def test_a_slow_device_slows_the_job_until_it_recovers():
    event = HardwareEvent(
        time_ms=20_000, kind="slowed", devices=(0,), cause=SLOW, last_ms=30_000, factor=2
    )
    _, result = run(Scripted(STEPS), event)
    assert [round(s.rate, 3) for s in result.spans] == [1.0, 0.5, 1.0]
    assert set(result.budget.lost_ms) == {"slow devices"}


def test_who_sees_a_slow_device_gains_if_it_stays_slow():
    event = HardwareEvent(
        time_ms=20_000, kind="slowed", devices=(0,), cause=SLOW, last_ms=HOUR, factor=3.0
    )
    model = ClusterModel(small_job())
    _, blind = run(Scripted(model), event, length_ms=2 * HOUR)
    _, seeing = run(peer_policy(RESIHP, model), event, length_ms=2 * HOUR)
    assert seeing.goodput > blind.goodput + 0.1


def test_rollback_loses_what_was_not_saved():
    costs = RecoveryConstants(exit_ms=1_000, hang_ms=1_000, save_ms=500)
    policy = Scripted(STEPS, costs=costs, rollback=True)
    settings = RunSettings(length_ms=100_000, mtbf_ms=400_000)
    machine = SimulationRun(policy, [failed(50_000, 0)], settings)
    interval = math.sqrt(2 * 500 * 400_000)  # 20 s: checkpoints are there at 20.5 s and 41 s
    lost = machine.finish().budget.lost_ms
    assert lost["lost work"] == pytest.approx(9_000 * (1 - 500 / (500 + interval)))
    assert lost["saving"] > 0


def test_published_shares_with_fixed_gaps():
    job = make_job("llama-70b", 98_304)
    rates = HazardRates(mtbf_ms=18 * MINUTE, fixed_gaps=True, correlated=0.0, causes=(KILLED,))
    length_ms = 200 * 18 * MINUTE
    events = draw_events(job, rates, length_ms, 1)
    settings = RunSettings(length_ms=length_ms, mtbf_ms=18 * MINUTE)
    model = ClusterModel(job)
    assert SimulationRun(
        peer_policy(FT_HSDP, model), events, settings
    ).finish().goodput == pytest.approx((8 + 7 * 11 / 12) / 18, abs=0.005)
    sync = peer_policy(CHECKPOINT, model)
    sync.costs = RecoveryConstants(
        exit_ms=60_000, hang_ms=0, schedule_ms=120_000, load_ms=120_000, groups_ms=300_000
    )
    assert SimulationRun(sync, events, settings).finish().goodput == pytest.approx(
        8 / 18, abs=0.005
    )


def slow_reference(failures: list[tuple[int, int]], replicas: int, length_s: int) -> float:
    """FT-HSDP second by second: 180 s stall after a failure in use, the replica back in 600 s."""
    stalled_until, back_at, productive = 0, dict.fromkeys(range(replicas), 0), 0.0
    by_second: dict[int, list[int]] = {}
    for second, replica in failures:
        by_second.setdefault(second, []).append(replica)
    for second in range(length_s):
        for replica in by_second.get(second, ()):
            if back_at[replica] <= second:
                stalled_until = second + 180
            back_at[replica] = second + 600
        if second >= stalled_until:
            productive += sum(back <= second for back in back_at.values()) / replicas
    return productive / length_s


@pytest.mark.parametrize("seed", range(6))
def test_a_second_implementation_agrees(seed):
    chance = random.Random(seed)
    job = small_job(spare_nodes=1000)
    device_of = {r: list(range(8 * r, 8 * r + 8)) for r in range(4)}
    moments = sorted(chance.sample(range(10, 20_000), 25))
    failures = [(second, chance.randrange(4)) for second in moments]
    # Every failure hits another device, so that none is dead already.
    events = []
    for second, replica in failures:
        devices = device_of[replica]
        device = devices[0]
        device_of[replica] = [*devices[2:], *devices[:2]]
        events.append(failed(second * 1000, device))
    settings = RunSettings(length_ms=20_000_000)
    steps = KnownSteps(job, step_ms=0.01)
    policy = Replicas(steps, FT_HSDP.card, constants_of(FT_HSDP, steps))
    found = SimulationRun(policy, events, settings).finish().goodput
    assert found == pytest.approx(slow_reference(failures, 4, 20_000), abs=2e-3)


def test_every_moment_is_accounted_for():
    job = small_job(spare_nodes=2)
    events = draw_events(job, HazardRates(mtbf_ms=HOUR, slow_ms=2 * HOUR), 100 * HOUR, 5)
    policy = peer_policy(RESIHP, ClusterModel(job))
    result = SimulationRun(policy, events, RunSettings(length_ms=100 * HOUR)).finish()
    assert result.spans[0].start_ms == 0
    assert result.spans[-1].end_ms == 100 * HOUR
    pairs = zip(result.spans, result.spans[1:], strict=False)
    assert all(a.end_ms == b.start_ms and a.rate != b.rate for a, b in pairs)
    area = sum((s.end_ms - s.start_ms) * s.rate for s in result.spans)
    assert area == pytest.approx(result.budget.productive_ms)
    assert all(record.reason for record in result.journal)
