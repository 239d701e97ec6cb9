"""The nine systems that the planner and the simulator are compared with: a table of what each does,
and one of how long the parts of its recovery take.
"""

from collections.abc import Mapping

from holdfast.planner.peers import rules
from holdfast.planner.peers.system import (
    REPLICAS,
    RESTART,
    SPARE_START_MS,
    Duration,
    JobFacts,
    PeerSystem,
    SystemCard,
)

SOCKET = "closed connection: 1 s assumed; hang: 60 s (ByteRobust's inspections take 10-60 s)"
SHRINK_MS = 2_000
"""Groups without the lost members, by NCCL's shrink."""


def init_ms(num_devices: int) -> int:
    """NCCL initialisation: 17 s at 16,384 devices, 200 s at 98,304 (FT-HSDP); a power law through
    both, at least a second.
    """
    scale: float = (num_devices / 16_384) ** 1.376
    return max(1_000, round(17_000 * scale))


def _init(job: JobFacts) -> int:
    return init_ms(job.num_devices)


def _move(job: JobFacts) -> int:
    return job.move_ms


def _shrink_and_move(job: JobFacts) -> int:
    return SHRINK_MS + job.move_ms


def _three_steps(job: JobFacts) -> int:
    return round(3 * job.step_ms)


Durations = Mapping[str, Duration]
"""By field of `RecoveryConstants`."""

_SOCKETS: Durations = {"exit_ms": 1_000, "hang_ms": 60_000}
_RESTARTS: Durations = {
    "schedule_ms": 120_000,
    "load_ms": 120_000,
    "groups_ms": _init,
    "first_step_ms": 100_000,
    "save_ms": 5_000,
}
_JOINS: Durations = {
    "groups_ms": SHRINK_MS,
    "join_ms": SPARE_START_MS,
    "join_stall_ms": _shrink_and_move,
}
_MOVES: Durations = {**_JOINS, "move_ms": _move}
_ADAPTS: Durations = {**_MOVES, "slow_steps": 3, "plan_ms": 1_440}

CHECKPOINT = PeerSystem(
    key="checkpoint",
    card=SystemCard(
        name="checkpoint restart",
        rule="any failure stops all workers: replace nodes, load the last checkpoint, start again "
        "with the same degrees and fewer replicas",
        source="the usual practice; FT-HSDP's parts of synchronous recovery; interval by "
        "Young/Daly",
        limits="the quoted parts (first step 200 s) add up to more than the quoted 10 minutes; the "
        "first step is given what is left of them; slow devices are left alone",
    ),
    propose=rules.checkpoint_restart,
    durations={"exit_ms": 60_000, "hang_ms": 600_000, **_RESTARTS},
    durations_source="detect 60 s, schedule 120 s, load 120 s, NCCL 200 s at 98,304 devices; hang: "
    "NCCL's 10-minute timeout; a checkpoint stops training for 5 s (assumed)",
    reaction=RESTART,
)
VARUNA = PeerSystem(
    key="varuna",
    card=SystemCard(
        name="Varuna-like",
        rule="every change: checkpoint restart with the best depth for the devices left",
        source="EuroSys'22; microsoft/varuna",
        limits="micro-batch size is not searched",
    ),
    propose=rules.varuna,
    durations={**_SOCKETS, **_RESTARTS},
    durations_source=f"{SOCKET}; restart as checkpoint restart",
    reaction=RESTART,
)
BAMBOO = PeerSystem(
    key="bamboo",
    card=SystemCard(
        name="Bamboo-like",
        rule="every tensor group also holds its successor's units, computes their forward ahead of "
        "time and takes them over",
        source="NSDI'23; uclasystem/bamboo (simulator constants)",
        limits="the twofold state must fit; pipelines are not rebuilt while short of nodes",
    ),
    propose=rules.bamboo,
    durations={
        **_SOCKETS,
        "groups_ms": 20_000,
        "join_ms": 45_000 + SPARE_START_MS,
        "join_stall_ms": 30_000,
    },
    durations_source=f"{SOCKET}; local rendezvous 20 s, global 30 s, creation 45 s",
)
OOBLECK = PeerSystem(
    key="oobleck",
    card=SystemCard(
        name="Oobleck-like",
        rule="a pipeline goes on with fewer nodes from a template, pipelines are merged where they "
        "are too short; layers and micro-batches split anew",
        source="SOSP'23; SymbioticLab/Oobleck",
        limits="templates by exact minimax instead of divide and conquer",
    ),
    propose=rules.oobleck,
    durations={**_SOCKETS, **_MOVES},
    durations_source=f"{SOCKET}; groups 2 s (NCCL shrink); state at ResiHP's rate",
)
RECYCLE = PeerSystem(
    key="recycle",
    card=SystemCard(
        name="ReCycle-like",
        rule="micro-batches of a lost stage go to the same stage of other replicas, the backward "
        "pass split, with all the activation memory there is",
        source="SOSP'24 (abstract)",
        limits="its mixed-integer schedules are replaced by list scheduling",
    ),
    propose=rules.recycle,
    durations={**_SOCKETS, **_JOINS},
    durations_source=f"{SOCKET}; groups 2 s (NCCL shrink); schedules are precomputed, state moves "
    "only to nodes that join",
)
FT_HSDP = PeerSystem(
    key="ft-hsdp",
    card=SystemCard(
        name="FT-HSDP-like",
        rule="the replica is lost as a whole, the others go on, it rejoins",
        source="arXiv 2602.00277",
        limits="over days its batch shrinks with the replicas that are left; a single plan of it "
        "keeps the batch, as all others do; what follows when its analyser finds a slow rank is "
        "not known",
    ),
    propose=rules.ft_hsdp,
    durations={
        "exit_ms": 60_000,
        "hang_ms": 60_000,
        "groups_ms": 120_000,
        "join_ms": 540_000,
    },
    durations_source="stall 3 min: detect 60 s, about 2 min re-join and first-step effects; the "
    "replica is back 10 min after the failure",
    reaction=REPLICAS,
)
CHAMELEON = PeerSystem(
    key="chameleon",
    card=SystemCard(
        name="Chameleon-like",
        rule="the better of re-routing and dynamic parallelism by Eq. 8",
        source="arXiv 2508.21613 through a re-implementation",
        limits="fail-stop only; its time until the next failure is our running estimate",
    ),
    propose=rules.chameleon,
    durations={**_SOCKETS, **_MOVES},
    durations_source=f"{SOCKET}; groups 2 s (NCCL shrink); state at ResiHP's rate; plans are "
    "cached",
    weighs_stalls=True,
)
RESIHP = PeerSystem(
    key="resihp",
    card=SystemCard(
        name="ResiHP-like",
        rule="tensor groups shrink to powers of two, one layer split for all, micro-batches move",
        source="arXiv 2605.06374",
        limits="migration in proportion to the speed of every stage, not by its Algorithm 1 step "
        "by step; a new layer split and migration are not combined",
    ),
    propose=rules.resihp,
    durations={"exit_ms": 1_000, "hang_ms": _three_steps, **_ADAPTS},
    durations_source="socket disconnect 1 s (assumed), 2-3 iterations; planning 1.44 s, groups "
    "2 s, layer transfer 15 s for 80 GB",
    sees_slow=True,
    whole_teams=False,
)
MALLEUS = PeerSystem(
    key="malleus",
    card=SystemCard(
        name="Malleus-like",
        rule="what is left of a node forms tensor groups of powers of two, each a stage; layers "
        "and micro-batches by exact minimax",
        source="SIGMOD'25; Hetu's strategy.py",
        limits="pipelines are arranged as the planner arranges them, not by its enumeration",
    ),
    propose=rules.malleus,
    durations={**_SOCKETS, **_ADAPTS},
    durations_source=f"{SOCKET}; the other constants are ResiHP's",
    sees_slow=True,
    whole_teams=False,
)

PEERS = (
    CHECKPOINT,
    VARUNA,
    BAMBOO,
    OOBLECK,
    RECYCLE,
    FT_HSDP,
    CHAMELEON,
    RESIHP,
    MALLEUS,
)
