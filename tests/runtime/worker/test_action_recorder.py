from math import inf
from types import SimpleNamespace

import pytest
import torch

from holdfast.observe.action_times import TimesReader
from holdfast.plan.actions import parse_line
from holdfast.runtime.worker.action_recorder import ActionRecorder

ACTIONS = "F0@r0.s0 REDUCE1@r0.s0 AGREE STEP"


class Told:
    """Gaps that note what they are told."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append(name)


@pytest.fixture
def make(tmp_path):
    made = []

    def make_recorder(*, every=1, limit_bytes=2**20):
        interpreter = SimpleNamespace(actions=parse_line(ACTIONS), is_completing=False)
        recorder = ActionRecorder(
            tmp_path / "times" / "n0.g0.jsonl",
            1,
            every=every,
            limit_bytes=limit_bytes,
            device=torch.device("cpu"),
            progress=lambda step, number: None,
            epoch=lambda: SimpleNamespace(number=1, interpreter=interpreter),
        )
        recorder.gaps = Told()
        made.append(recorder)
        return recorder

    return make_recorder


def run_step(recorder, step):
    recorder.progress(step, 0)
    recorder.progress(step, 1)
    recorder.progress(step, 2)
    recorder.waiting("agree")
    recorder.going_on()
    recorder.reduced(1, 0.0)
    recorder.progress(step, 3)
    recorder.applying()
    recorder.applied(step + 1)


def test_steps_are_read_back(make, tmp_path):
    recorder = make()
    for step in range(3):
        run_step(recorder, step)
    recorder.progress(3, 0)
    recorder.broken_off()
    recorder.close()
    found = TimesReader(tmp_path, "n0.g0").read()
    assert [(one.step, one.broken) for one in found] == [
        (0, False),
        (1, False),
        (2, False),
        (3, True),
    ]
    assert found[0].spans[-1].kind == "STEP"
    assert len(found[0].reductions) == 1
    assert found[0].peak_bytes > 0
    told = ["waiting", "going_on", "applying", "applied"]
    assert recorder.gaps.calls == [*told * 3, "broken_off"]


def test_copies_end_within_a_wait(make, tmp_path):
    recorder = make()
    until = iter([inf, 0.0, 0.0])
    recorder.copies_until_s = lambda: next(until)
    run_step(recorder, 0)
    recorder.close()
    (found,) = TimesReader(tmp_path, "n0.g0").read()
    assert [span.kind for span in found.spans].count("wait") == 1
    assert found.seconds("copy") == 0  # they had ended when it began


def test_one_in_some_steps_and_bounded(make, tmp_path):
    recorder = make(every=2, limit_bytes=4000)
    for step in range(100):  # fewer are recorded than may wait to be written
        run_step(recorder, step)
    recorder.close()
    sizes = [path.stat().st_size for path in (tmp_path / "times").iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) <= 4000 + 500
    found = [one.step for one in TimesReader(tmp_path, "n0.g0").read()]
    assert found == list(range(found[0], 100, 2))
