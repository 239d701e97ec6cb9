"""Pipeline orders as torch calculates them, in our form, made without processes or stages.

Only the calculation is asked: an object made by `__new__` gets the few fields it reads. Stages are
numbered along the pipeline, so number s is our stage s of a plan with one replica.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from holdfast.plan.lanes import LaneOrder


def torch_schedules() -> ModuleType:
    from torch.distributed.pipelining import schedules

    return schedules


def gpipe(depth: int, num_micro_batches: int) -> list[LaneOrder]:
    return _single("ScheduleGPipe", depth, num_micro_batches)


def one_f_one_b(depth: int, num_micro_batches: int) -> list[LaneOrder]:
    return _single("Schedule1F1B", depth, num_micro_batches)


def looped_bfs(depth: int, virtual: int, num_micro_batches: int) -> list[LaneOrder]:
    return _multi("ScheduleLoopedBFS", depth, virtual, num_micro_batches)


def interleaved(depth: int, virtual: int, num_micro_batches: int) -> list[LaneOrder]:
    return _multi("ScheduleInterleaved1F1B", depth, virtual, num_micro_batches)


def interleaved_zero_bubble(depth: int, virtual: int, num_micro_batches: int) -> list[LaneOrder]:
    return _multi("ScheduleInterleavedZeroBubble", depth, virtual, num_micro_batches)


def zbv(depth: int, num_micro_batches: int) -> list[LaneOrder]:
    return _multi("ScheduleZBVZeroBubble", depth, 2, num_micro_batches)


def dual_pipe_v(depth: int, num_micro_batches: int) -> list[LaneOrder]:
    return _multi("ScheduleDualPipeV", depth, 2, num_micro_batches)


def _single(name: str, depth: int, num_micro_batches: int) -> list[LaneOrder]:
    schedule = _bare(name, _num_stages=depth, _n_microbatches=num_micro_batches)
    table = schedule._get_pipeline_order()
    return [_convert(table[rank]) for rank in range(depth)]


def _multi(name: str, depth: int, virtual: int, num_micro_batches: int) -> list[LaneOrder]:
    num_rounds = max(1, num_micro_batches // depth)
    schedule = _bare(
        name,
        pp_group_size=depth,
        n_local_stages=virtual,
        num_stages=depth * virtual,
        number_of_rounds=num_rounds,
        microbatches_per_round=num_micro_batches // num_rounds,
        _n_microbatches=num_micro_batches,
        _stages=[None] * virtual,
    )
    return [_convert(schedule._calculate_single_rank_operations(rank)) for rank in range(depth)]


def _bare(name: str, **fields: object) -> Any:
    cls = getattr(torch_schedules(), name)
    schedule = cls.__new__(cls)
    for field, value in fields.items():
        setattr(schedule, field, value)
    return schedule


def _convert(actions: Iterable[Any]) -> LaneOrder:
    """Idle slots and gradient reductions go; a forward and backward done together come in turn."""
    order: LaneOrder = []
    for action in actions:
        if action is None:
            continue
        if action.sub_actions:
            order += _convert(action.sub_actions)
        elif (kind := action.computation_type.value) in ("F", "B", "I", "W"):
            order.append((kind, action.stage_index, action.microbatch_index))
    return order
