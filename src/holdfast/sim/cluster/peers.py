"""Published systems as policies: the rule of each, its source, its constants, its limits.

Constants are one set per system. Where a paper gives none, the most favourable published figure of
a comparable system stands in, and the source says so: peers are not to look worse than they are.
"""

from holdfast.sim.cluster.job import SimulatedJob
from holdfast.sim.cluster.pace import FORWARD, StepTimes
from holdfast.sim.cluster.policy import SPARE_START_MS, Card, Policy, PolicyConstants, move_ms
from holdfast.sim.cluster.rules import Adaptive, Option, Replicas, Restart, by_window
from holdfast.sim.cluster.strategies import (
    double_up,
    drop,
    migrate,
    morph,
    regroup,
    reroute,
    shorten,
)

SOCKET = "closed connection: 1 s assumed; hang: 60 s (ByteRobust's inspections take 10-60 s)"


def init_ms(job: SimulatedJob) -> int:
    """NCCL initialisation: 17 s at 16,384 devices, 200 s at 98,304 (FT-HSDP); a power law through
    both, at least a second.
    """
    scale: float = (job.devices / 16_384) ** 1.376
    return max(1_000, round(17_000 * scale))


def checkpoint_restart(pace: StepTimes) -> Policy:
    job = pace.job
    card = Card(
        name="checkpoint restart",
        rule="any failure stops everybody: replace nodes, load the last checkpoint, start again",
        source="FT-HSDP's parts of synchronous recovery; interval by Young/Daly",
        limits="the quoted parts (first step 200 s) add up to more than the quoted 10 minutes; the "
        "first step is given what is left of them; slow devices are left alone",
    )
    costs = PolicyConstants(
        exit_ms=60_000,
        hang_ms=600_000,
        schedule_ms=120_000,
        load_ms=120_000,
        groups_ms=init_ms(job),
        first_step_ms=100_000,
        save_ms=5_000,
        source="detect 60 s, schedule 120 s, load 120 s, NCCL 200 s at 98,304 devices; hang: "
        "NCCL's 10-minute timeout; a checkpoint stops training for 5 s (assumed)",
    )
    return Restart(pace, card, costs, Option("drop broken pipelines", drop, False))


def varuna(pace: StepTimes) -> Policy:
    base = checkpoint_restart(pace).costs
    card = Card(
        name="Varuna-like",
        rule="every change: checkpoint restart with the best depth for the devices left",
        source="EuroSys'22, microsoft/varuna",
        limits="micro-batch size is not searched; depths at least the job's own",
    )
    costs = PolicyConstants(
        exit_ms=1_000,
        hang_ms=60_000,
        schedule_ms=base.schedule_ms,
        load_ms=base.load_ms,
        groups_ms=base.groups_ms,
        first_step_ms=base.first_step_ms,
        save_ms=base.save_ms,
        source=f"{SOCKET}; restart as checkpoint restart",
    )
    return Restart(pace, card, costs, Option("morph", morph, False))


def bamboo(pace: StepTimes) -> Policy:
    job = pace.job
    hidden = (job.stages - 1) * max(pace.whole)
    redundant = max(0.0, job.micro_batches * FORWARD * max(pace.whole) - hidden)
    fits = job.fits(2 * max(job.layer_counts), job.tensor)
    card = Card(
        name="Bamboo-like",
        rule="every node computes its successor's forward in bubbles and takes over its stage",
        source="NSDI'23, uclasystem/bamboo (simulator constants)",
        limits="the twofold state must fit; pipelines are not rebuilt while short of nodes, and "
        "each keeps its share of the batch, so that one doubled stage slows all of them",
    )
    costs = PolicyConstants(
        exit_ms=1_000,
        hang_ms=60_000,
        groups_ms=20_000,
        join_ms=45_000 + SPARE_START_MS,
        join_stall_ms=30_000,
        source=f"{SOCKET}; local rendezvous 20 s, global 30 s, creation 45 s",
    )
    options = [Option("double up", double_up, False)] if fits else []
    redundancy = redundant / (pace.healthy_ms + redundant)
    return Adaptive(pace, card, costs, options, redundancy=redundancy if fits else 1.0)


def oobleck(pace: StepTimes) -> Policy:
    card = Card(
        name="Oobleck-like",
        rule="a pipeline goes on with fewer nodes from a template; layers and micro-batches split "
        "anew",
        source="SOSP'23, SymbioticLab/Oobleck",
        limits="templates by exact minimax instead of divide and conquer; nodes are not borrowed",
    )
    costs = PolicyConstants(
        exit_ms=1_000,
        hang_ms=60_000,
        groups_ms=2_000,
        move_ms=move_ms(pace.job),
        join_ms=SPARE_START_MS,
        join_stall_ms=2_000 + move_ms(pace.job),
        source=f"{SOCKET}; groups 2 s (NCCL shrink); state at ResiHP's rate",
    )
    return Adaptive(pace, card, costs, [Option("shorter pipeline", shorten, True)])


def recycle(pace: StepTimes) -> Policy:
    card = Card(
        name="ReCycle-like",
        rule="micro-batches of a lost stage go to the same stage elsewhere, in bubbles",
        source="SOSP'24 (abstract); our greedy schedules for the bound",
        limits="activation memory for the additional micro-batches is taken to be there",
    )
    costs = PolicyConstants(
        exit_ms=1_000,
        hang_ms=60_000,
        groups_ms=2_000,
        join_ms=SPARE_START_MS,
        join_stall_ms=2_000 + move_ms(pace.job),
        source=f"{SOCKET}; groups 2 s (NCCL shrink); schedules are precomputed, state moves only "
        "to who joins",
    )
    return Adaptive(pace, card, costs, [Option("re-route", reroute, False)])


def ft_hsdp(pace: StepTimes) -> Policy:
    card = Card(
        name="FT-HSDP-like",
        rule="the replica is lost as a whole, the others go on with a smaller batch, it rejoins",
        source="arXiv 2602.00277",
        limits="the batch shrinks; what follows when its analyser finds a slow rank is not known",
    )
    costs = PolicyConstants(
        exit_ms=60_000,
        hang_ms=60_000,
        groups_ms=120_000,
        join_ms=540_000,
        source="stall 3 min: detect 60 s, about 2 min re-join and first-step effects; the replica "
        "is back 10 min after the failure",
    )
    return Replicas(pace, card, costs)


def chameleon(pace: StepTimes) -> Policy:
    card = Card(
        name="Chameleon-like",
        rule="the better of re-routing and dynamic parallelism by Eq. 8",
        source="arXiv 2508.21613 through a re-implementation",
        limits="fail-stop only; its time until the next failure is our running estimate",
    )
    costs = PolicyConstants(
        exit_ms=1_000,
        hang_ms=60_000,
        groups_ms=2_000,
        move_ms=move_ms(pace.job),
        join_ms=SPARE_START_MS,
        join_stall_ms=2_000 + move_ms(pace.job),
        source=f"{SOCKET}; groups 2 s (NCCL shrink); state at ResiHP's rate; plans are cached",
    )
    options = [Option("re-route", reroute, False), Option("shorter pipeline", shorten, True)]
    return Adaptive(pace, card, costs, options, by_window)


def resihp(pace: StepTimes) -> Policy:
    card = Card(
        name="ResiHP-like",
        rule="tensor groups shrink to powers of two, one layer split for all, micro-batches move",
        source="arXiv 2605.06374",
        limits="migration by capacity per stage, not by its Algorithm 1 step by step",
    )
    costs = PolicyConstants(
        exit_ms=1_000,
        hang_ms=round(3 * pace.healthy_ms),
        slow_steps=3,
        plan_ms=1_440,
        groups_ms=2_000,
        move_ms=move_ms(pace.job),
        join_ms=SPARE_START_MS,
        join_stall_ms=2_000 + move_ms(pace.job),
        source="socket disconnect 1 s (assumed), 2-3 iterations; planning 1.44 s, groups 2 s, "
        "layer transfer 15 s for 80 GB",
    )
    return Adaptive(
        pace, card, costs, [Option("shrink and migrate", migrate, True)], whole_seats=False
    )


def malleus(pace: StepTimes) -> Policy:
    card = Card(
        name="Malleus-like",
        rule="what is left of a node forms tensor groups of powers of two, each a stage; layers "
        "and micro-batches by exact minimax",
        source="SIGMOD'25, Hetu's strategy.py",
        limits="placements of straggler groups are not enumerated",
    )
    costs = PolicyConstants(
        exit_ms=1_000,
        hang_ms=60_000,
        slow_steps=3,
        plan_ms=1_440,
        groups_ms=2_000,
        move_ms=move_ms(pace.job),
        join_ms=SPARE_START_MS,
        join_stall_ms=2_000 + move_ms(pace.job),
        source=f"{SOCKET}; the other constants are ResiHP's",
    )
    return Adaptive(pace, card, costs, [Option("regroup", regroup, True)], whole_seats=False)
