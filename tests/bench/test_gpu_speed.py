"""What the benchmarks of a GPU make of what they see; taking turns needs none."""

import sys
from math import prod

import pytest

from holdfast.plan.model_catalog import llama_units

CONTENDER = """
import sys
from _turns import Place
place = Place(sys.argv[1])
while place.arrive():
    print("block", flush=True)
"""


@pytest.fixture
def speed(load_bench):
    return load_bench("gpu_speed")


def test_parameters_are_counted_as_the_model_has_them(speed):
    for name, shape in speed.SHAPES.items():
        specs = {spec.name: spec for unit in llama_units(shape) for spec in unit.tensors}
        count = sum(prod(spec.shape) for spec in specs.values())
        assert speed.num_parameters(shape) == count
        assert f"{count / 1e9:.1f}B" == name


def found(speed, ours):
    seconds = {"ours": [ours] * 6, "plain": [1.0] * 6, "plain again": [1.0] * 6}
    return speed.Measured(seconds, {"ours": 100, "plain": 100}, 0.001)


@pytest.mark.parametrize(("ours", "met"), [(0.99, True), (1.0, True), (1.01, False)])
def test_a_job_has_to_be_as_fast_as_the_others(speed, ours, met):
    work = speed.Work(speed.SHAPES["1.1B"], 4096, 2, 8, True, 1)
    goals, _ = speed.judge("a model", work, found(speed, ours))
    assert [goal.met for goal in goals] == [met, True, True]


def test_the_time_to_the_next_step_leaves_out_steps_before_the_fault(load_bench, tmp_path):
    stamp = "2026-01-01T00:00:0{}+00:00"
    journal = f'{{"time": "{stamp.format(1)}", "event": "fault_injected", "step": 10}}\n'
    steps = [(9, 2), (10, 4), (11, 5)]
    metrics = [f'{{"time": "{stamp.format(at)}", "step": {step}}}\n' for step, at in steps]
    (tmp_path / "journal.jsonl").write_text(journal)
    (tmp_path / "metrics.jsonl").write_text("".join(metrics))
    assert load_bench("gpu_fault").to_next_step(tmp_path) == 3.0


@pytest.mark.process
@pytest.mark.slow
def test_contenders_wait_for_their_turns(load_bench, tmp_path, monkeypatch):
    turns = load_bench("_turns")
    monkeypatch.setenv("PYTHONPATH", f"{turns.__file__.rpartition('/')[0]}:{':'.join(sys.path)}")
    turn = turns.Turn("one", tmp_path)
    try:
        turn.start([sys.executable, "-c", CONTENDER, turn.address])
        turn.wait_ready()
        assert turn.last_lines() == ""
        turn.block()
        turn.block()
        turn.finish()
        assert turn.last_lines() == "block\nblock"
    finally:
        turn.close()


@pytest.mark.process
@pytest.mark.slow
def test_a_contender_that_ends_is_not_waited_for(load_bench, tmp_path):
    turn = load_bench("_turns").Turn("one", tmp_path)
    try:
        turn.start([sys.executable, "-c", "print('out of memory')"])
        with pytest.raises(RuntimeError, match="one has not begun:\nout of memory"):
            turn.wait_ready()
    finally:
        turn.close()
