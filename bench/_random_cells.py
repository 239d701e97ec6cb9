"""Random clusters with random faults, for the planner: shapes, sizes and situations by chance.

A cell is kept if the healthy plan fits its devices and the faults leave a live copy of everything:
what happens otherwise is tested by the fixed grid.
"""

import random
from collections.abc import Iterator

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.copies import lost_slice
from holdfast.plan.model_catalog import llama_shape, llama_units
from holdfast.plan.plan import Limits, Plan
from holdfast.plan.profile import Profile
from holdfast.planner.hardware import hardware, hardware_profile
from holdfast.planner.health import Health, health_of
from holdfast.planner.pipelines import Sketch, read_plan
from holdfast.planner.step_cost import CostModel

MODELS = ("llama-1b", "llama-3b", "llama-7b", "llama-13b", "llama-30b", "llama-70b")
REPLICAS, STAGES, TENSOR = (1, 1, 2, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 8, 12, 16), (1, 2, 4, 8)
LEAST, MOST = 4, 256
"""Devices."""
LOSSES = (0.2, 0.35, 0.55, 0.7)
"""Share of its speed a slow device has lost."""

RandomCell = tuple[str, str, Plan, Health, Profile]
"""Cluster, situation, and what they are."""


def random_cells(seed: int, count: int) -> Iterator[RandomCell]:
    chance = random.Random(seed)
    while count:
        cell = _draw(chance)
        if cell is not None:
            yield cell
            count -= 1


def _draw(chance: random.Random) -> RandomCell | None:
    model = chance.choice(MODELS)
    replicas, stages, tensor = (chance.choice(row) for row in (REPLICAS, STAGES, TENSOR))
    per_replica = chance.choice((1, 2, 4)) * max(stages, 4)
    num_devices = replicas * stages * tensor
    if not LEAST <= num_devices <= MOST:
        return None
    units = llama_units(llama_shape(model))
    try:
        plan = regular_plan(
            units, replicas=replicas, stages=stages, tensor=tensor,
            micro_batches=replicas * per_replica, split="cost",
            limits=Limits(device_bytes=hardware("h100").device_bytes),
        )  # fmt: skip
    except HoldfastError:
        return None
    profile = hardware_profile("h100", units)
    health = _faults(chance, plan)
    if health is None or not _fits(plan, profile) or lost_slice(plan, health.dead):
        return None
    words = f"{len(health.dead)} dead, {len(health.slow)} slow"
    name = f"{model} {replicas}x{stages}x{tensor}, {per_replica} micro-batches"
    return name, words, plan, health, profile


def _faults(chance: random.Random, plan: Plan) -> Health | None:
    workers = plan.workers
    num_dead = min(chance.choice((0, 1, 1, 2, 3, max(1, len(workers) // 8))), len(workers) - 1)
    dead = chance.sample(workers, num_dead)
    live = [worker for worker in workers if worker not in dead]
    hit = chance.sample(live, min(chance.choice((0, 0, 1, 2, 4)), len(live)))
    slow = {worker: 1 / (1 - chance.choice(LOSSES)) for worker in hit}
    return health_of(plan, dead, slow) if dead or slow else None


def _fits(plan: Plan, profile: Profile) -> bool:
    roster = read_plan(plan, Health())
    sketch = Sketch(roster.pipes, roster.counts, plan.schedule.kind)
    return not CostModel(plan, profile).refusal(sketch)
