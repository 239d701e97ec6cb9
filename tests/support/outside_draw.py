"""What is done to a job from outside, drawn from a seed."""

import random
from dataclasses import dataclass

SHAPES: dict[str, dict[str, object]] = {
    "2 replicas": {"replicas": 2},
    "3 replicas": {"replicas": 3},
    "2 stages": {"stages": 2},
    "2 x 2 stages, 1f1b": {"replicas": 2, "stages": 2, "schedule": "1f1b"},
    "2 x 2 stages, gpipe": {"replicas": 2, "stages": 2, "schedule": "gpipe"},
    "2 x 2 stages, zero-bubble": {"replicas": 2, "stages": 2, "schedule": "zero-bubble"},
    "2 x 2 stages, interleaved": {
        "replicas": 2,
        "stages": 2,
        "schedule": "interleaved",
        "virtual": 2,
    },
    "2 x tensor 2": {"replicas": 2, "tensor": 2},
    "2 x shard 2": {"replicas": 2, "shard": 2},
}

SIGNALS = {
    "kill": ("worker", "worker", "workers", "agent", "coordinator", "fork server", "launcher"),
    "stop": ("worker", "worker", "agent", "coordinator", "launcher"),
    "term": ("worker", "agent", "launcher"),
}
"""To whom each is sent. A stop ends after a while."""
NETWORK = ("cut", "reset", "flood")
"""Of the ports of a role, or of any process."""
LASTING_S = {"stop": (0.3, 4.0), "cut": (0.5, 4.0), "reset": (0.2, 0.5), "flood": (1.0, 3.0)}
FULL_S = (0.5, 3.0)
LONG_S = 14.0
"""Some cuts take longer than a silent node is waited for."""


@dataclass(frozen=True)
class Blow:
    kind: str
    """kill, stop, term, cut, reset, flood or fill"""
    target: str
    """A role; empty: any, or none."""
    after_s: float
    """Since the first step was seen."""
    lasts_s: float
    choice: float
    """Which of several, from 0 to 1."""
    at_step: int = 0
    """Not before so many are done."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target}".strip()

    def __str__(self) -> str:
        lasting = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.name} after {self.after_s:.2f} s{lasting}"


SCENARIOS: dict[str, tuple[Blow, ...]] = {
    "the coordinator is cut off for longer than a node is waited for": (
        Blow("cut", "coordinator", 1.0, 25.0, 0.0),
    ),
    "the disk is full for a while": (Blow("fill", "", 0.5, 3.0, 0.0),),
    "the disk is full at the end": (Blow("fill", "", 2.0, 6.0, 0.0),),
    "the store is cut off during a recovery": (
        Blow("kill", "worker", 1.0, 0.0, 0.0),
        Blow("cut", "store", 1.0, 4.0, 0.0),
    ),
    "connections are reset during a recovery": (
        Blow("kill", "worker", 1.0, 0.0, 0.0),
        Blow("reset", "worker", 1.1, 0.5, 0.5),
    ),
    "a death while strangers use up the coordinator's port": (
        Blow("flood", "coordinator", 0.5, 4.0, 0.0),
        Blow("kill", "worker", 1.5, 0.0, 0.9),
    ),
    "a death while strangers use up the store's port": (
        Blow("flood", "store", 0.5, 4.0, 0.0),
        Blow("kill", "worker", 1.5, 0.0, 0.9),
    ),
    "the coordinator is killed at the end": (Blow("kill", "coordinator", 0.0, 0.0, 0.0, 60),),
    "an agent is killed at the end": (Blow("kill", "agent", 0.0, 0.0, 0.0, 60),),
    "an agent is stopped for 25 s": (Blow("stop", "agent", 1.0, 25.0, 0.0),),
    "all workers die at once": (Blow("kill", "workers", 1.0, 0.0, 1.0),),
    "the job is stopped while the coordinator is cut off": (
        Blow("cut", "coordinator", 1.0, LONG_S, 0.0),
        Blow("term", "launcher", 1.5, 0.0, 0.0),
    ),
    "the launcher is killed": (Blow("kill", "launcher", 1.0, 0.0, 0.0),),
}
"""What was once found in this way, each with a name."""


@dataclass(frozen=True)
class OutsideRun:
    seed: int
    shape: str
    devices_per_node: int
    has_planner: bool
    blows: tuple[Blow, ...]

    def __str__(self) -> str:
        planner = ", planner" if self.has_planner else ""
        return (
            f"seed {self.seed}: {self.shape}, {self.devices_per_node} per node{planner}: "
            f"{'; '.join(map(str, self.blows))}"
        )


def draw_outside(seed: int, is_root: bool = True) -> OutsideRun:
    """Without root: signals and floods only."""
    source = random.Random(seed)
    blows = [_draw_blow(source, is_root) for _ in range(source.choice((1, 2, 2, 3)))]
    shape = source.choice(list(SHAPES))
    return OutsideRun(
        seed=seed,
        shape=shape,
        devices_per_node=source.choice((1, 2)) if "x" in shape else 1,
        has_planner=source.random() < 0.25,
        blows=tuple(sorted(blows, key=lambda blow: blow.after_s)),
    )


def _draw_blow(source: random.Random, is_root: bool) -> Blow:
    kinds = ("kill", "kill", "kill", "stop", "stop", "term", "flood")
    kind = source.choice(
        (*kinds, "cut", "cut", "reset", "reset", "fill", "fill") * is_root or kinds
    )
    target = source.choice(SIGNALS[kind]) if kind in SIGNALS else ""
    if kind == "cut":
        target = source.choice(("coordinator", "store", "worker", ""))
    lasts_s = 0.0
    if kind in LASTING_S or kind == "fill":
        lasts_s = source.uniform(*LASTING_S.get(kind, FULL_S))
    if kind == "cut" and source.random() < 0.15:
        lasts_s = LONG_S
    return Blow(kind, target, source.uniform(0.0, 3.5), lasts_s, source.random())
