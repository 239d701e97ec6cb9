"""How long the next step should take, given its workloads.

The workload model says how long every computation takes, the timeline turns that into a step. A
lane that is known to be slow, or a little slower than its peers since ever, is taken as it is: the
prediction is of this job on these devices, so whatever the step takes beyond it is news.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from holdfast.detect.pace import PairTimes, PartShape, compile_shapes
from holdfast.detect.workload import Array, Index, WorkloadModel
from holdfast.errors import invariant
from holdfast.plan.lanes import LaneLayout, layout_of
from holdfast.plan.plan import Plan
from holdfast.plan.profile import LayoutCosts, Profile, resolve
from holdfast.plan.timeline import Program, compile_program, run
from holdfast.schedule.orders import compute_orders

KINDS = "FBIW"

ClassKey = tuple[tuple[int, int, int, int], ...]
"""(first unit, stop, tensor, shard) of every stage that a lane holds."""


class Work(msgspec.Struct, frozen=True):
    """The computations of a plan as arrays, one entry each.

    Lanes that do the same (the same units at the same tensor degree) form a class and share a
    model per kind. A lane with several stages has one model for all: `weight` is what share of it
    a computation takes.
    """

    lane: Index
    model: Index
    """Which model prices it: class times the number of kinds, plus kind."""
    kind: Index
    micro_batch: Index
    weight: Array
    lane_class: Index
    kinds: str
    classes: tuple[ClassKey, ...]
    """What the lanes of every class hold."""

    @property
    def model_keys(self) -> list[tuple[ClassKey, str]]:
        """What every model is of: the same key in another plan is the same work."""
        return [(held, kind) for held in self.classes for kind in self.kinds]

    @property
    def num_models(self) -> int:
        return (int(self.lane_class.max()) + 1) * len(self.kinds)


def work_of(program: Program, costs: LayoutCosts) -> Work:
    layout = program.layout
    held = [_held(layout, lane) for lane in range(len(layout.lanes))]
    classes = tuple(dict.fromkeys(held))
    lane_class = [classes.index(key) for key in held]
    costs = msgspec.structs.replace(costs, workload=())
    kinds = "".join(kind for kind in KINDS if any(op[0] == kind for op in program.ops))
    totals = [_lane_totals(layout, lane, costs, kinds) for lane in range(len(layout.lanes))]
    lanes, models, numbers, micro_batches, weights = [], [], [], [], []
    for op, members in zip(program.ops, program.op_lanes, strict=True):
        lane, kind = members[0], kinds.index(op[0])
        total = totals[lane][kind]
        lanes.append(lane)
        models.append(lane_class[lane] * len(kinds) + kind)
        numbers.append(kind)
        micro_batches.append(op[2])
        weights.append((costs.duration(op) or 1.0) / total)
    return Work(
        np.array(lanes),
        np.array(models),
        np.array(numbers),
        np.array(micro_batches),
        np.array(weights),
        np.array(lane_class),
        kinds,
        classes,
    )


def _held(layout: LaneLayout, lane: int) -> ClassKey:
    """Lanes with the same units and degrees do the same work."""
    stages = [layout.plan.stages[number] for number in layout.lane_stages[lane]]
    return tuple((stage.first, stage.stop, stage.tensor, stage.shard) for stage in stages)


def _lane_totals(layout: LaneLayout, lane: int, costs: LayoutCosts, kinds: str) -> list[float]:
    """What one micro-batch costs a lane over all its stages, by kind; where the profile knows
    nothing, every stage counts 1.
    """
    whole = msgspec.structs.replace(costs, part={})
    return [
        sum(whole.duration((kind, stage, 0)) or 1.0 for stage in layout.lane_stages[lane])
        for kind in kinds
    ]


class Predictor:
    """A plan compiled for prediction."""

    def __init__(self, plan: Plan, profile: Profile = Profile()) -> None:
        self.layout = layout_of(plan)
        costs = resolve(self.layout, profile)
        self.program = compile_program(self.layout, compute_orders(self.layout, profile))
        self.work = work_of(self.program, costs)
        self.shapes = compile_shapes(self.program, profile)
        timeline = run(self.program, [costs.duration(op) for op in self.program.ops], costs)
        self.tail = timeline.epilogue.end - timeline.epilogue.computed
        """Reduction, agreement and update that no computation hides; the rest of it is learned."""
        self._op_order = [self.work.model[shape.ops] for shape in self.shapes]
        self._op_batch = [self.work.micro_batch[shape.ops] for shape in self.shapes]
        self._op_weight = [self.work.weight[shape.ops] for shape in self.shapes]
        self._op_lane = [self.work.lane[shape.ops] for shape in self.shapes]

    def durations(self, shape: int, table: Array, lane_factor: Array) -> Array:
        """Of every computation of a shape; `table` is the model's answer per class and kind."""
        times: Array = table[self._op_order[shape], self._op_batch[shape]]
        return times * self._op_weight[shape] * lane_factor[self._op_lane[shape]]

    def lane_ends(
        self, model: WorkloadModel, features: Array, lane_factor: Array, paths: "PathFactors"
    ) -> Array:
        """When the last computation of every lane ends."""
        invariant(model.ready, "a prediction needs a fitted model")
        table = model.table(features)
        ends = np.zeros(len(self.layout.lanes))
        for number, shape in enumerate(self.shapes):
            found = shape.ends(self.durations(number, table, lane_factor), paths.apply(self, shape))
            ends[shape.lanes] = found[shape.last]
        return ends


def model_costs(predictor: Predictor, profile: Profile) -> Array:
    """What one micro-batch takes by the profile, per model; NaN where it was not measured."""
    layout, work = predictor.layout, predictor.work
    costs = resolve(layout, msgspec.structs.replace(profile, slow={}, workload=()))
    found = np.full((len(work.classes), len(work.kinds)), np.nan)
    for lane, number in enumerate(work.lane_class.tolist()):
        if all(_is_measured(layout.plan, held, profile) for held in work.classes[number]):
            found[number] = _lane_totals(layout, lane, costs, work.kinds)
    return found.ravel()


def _is_measured(plan: Plan, held: tuple[int, int, int, int], profile: Profile) -> bool:
    first, stop, tensor, _ = held
    names = [unit.name for unit in plan.units[first:stop]]
    return tensor in profile.tensor and all(name in profile.unit for name in names)


def nearest_model(key: tuple[ClassKey, str], known: Mapping[tuple[ClassKey, str], int]) -> int:
    """The known model of the same kind with most units in common, at the same degrees if there is
    one; -1: there is none of its kind.
    """

    def closeness(other: ClassKey) -> tuple[int, int]:
        pairs = [(a, b) for a in key[0] for b in other]
        common = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in pairs)
        return (sum(a[2:] == b[2:] for a, b in pairs), common)

    others = [other for other in known if other[1] == key[1]]
    return known[max(others, key=lambda other: closeness(other[0]))] if others else -1


class PathFactors:
    """How much longer the messages between two lanes take than the profile says."""

    def __init__(self, factors: dict[tuple[int, int], float] | None = None) -> None:
        self.factors = factors or {}

    def apply(self, predictor: Predictor, shape: PartShape) -> PairTimes | None:
        if shape.links is None or not self.factors:
            return shape.links
        factor = np.ones(shape.ops.shape)
        lanes = channel_lanes(predictor.program)
        channel = np.array(predictor.program.channel, dtype=np.int64)[shape.ops]
        for number, pair in enumerate(lanes):
            if pair in self.factors:
                factor[channel == number] = self.factors[pair]
        return PairTimes(shape.links.occupancy * factor, shape.links.latency * factor)


def channel_lanes(program: Program) -> list[tuple[int, int]]:
    """(sending lane, receiving lane) of every channel."""
    return [(sending[0], receiving[0]) for sending, receiving in program.channel_lanes]
