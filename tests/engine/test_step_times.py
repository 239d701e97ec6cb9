"""What a worker tells of a step."""

import msgspec
import torch

from holdfast.control.worker_reports import StepTimes
from holdfast.detect.facts import PathReport
from holdfast.engine.data import SyntheticTask
from holdfast.engine.step_times import MAX_PATHS, step_times, step_workloads
from holdfast.plan.build import regular_plan
from support.random_plans import make_units

CPU = torch.device("cpu")


def times(found, paths=()):
    return step_times(found, paths, workloads=(), device=CPU, is_emulated=False)


def test_sums_by_kind_and_means_by_unit():
    told = times(
        {
            ("forward", 0): [1.0, 3.0],
            ("forward", 1): [5.0, 5.0],
            ("backward", 0): [4.0, 8.0],
            ("action", -1): [0.5, 1.5],
            ("agree", -1): [0.25],
        }
    )
    assert told.times == {"F": 14.0, "B": 12.0}
    assert told.units == {0: (2.0, 3.0, 3.0), 1: (5.0, 0.0, 0.0)}
    assert (told.action, told.agree, told.update) == (1.0, 0.25, 0.0)
    assert told.peak_bytes > 2**20


def test_halves_of_a_backward_pass():
    told = times({("backward_input", 2): [1.0, 2.0], ("backward_weight", 2): [4.0]})
    assert (told.times, told.units) == ({"I": 3.0, "W": 4.0}, {2: (0.0, 1.5, 4.0)})


def test_its_size_is_bounded_whatever_the_step():
    paths = [PathReport(("n0.g0", f"n{n}.g0"), 4096, 0.001) for n in range(10 * MAX_PATHS)]
    found = {(kind, unit): [0.0123] * 500 for kind in ("forward", "backward") for unit in range(20)}
    told = times(found, paths)
    assert len(told.paths) == MAX_PATHS
    packed = msgspec.msgpack.encode(told)
    assert len(packed) < 4000
    assert msgspec.msgpack.decode(packed, type=StepTimes) == told


def test_one_worker_tells_the_workloads():
    plan = regular_plan(make_units(4), stages=2, micro_batches=3)
    data = SyntheticTask(16, 8, 2, seed=1, shortest=2)
    told = step_workloads(plan, plan.workers[0], data, 5)
    assert [load.tokens for load in told] == [
        data.micro_batch(5, number).tokens.numel() for number in range(3)
    ]
    assert step_workloads(plan, plan.workers[1], data, 5) == ()
