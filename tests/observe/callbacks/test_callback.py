"""Which method an event calls, and what a callback that fails costs."""

import threading

import msgspec

from holdfast.observe.callbacks.callback import Callback, handlers_of, name_of
from holdfast.observe.callbacks.callback_thread import MAX_TRACEBACKS, CallbackThread
from holdfast.observe.events import (
    CheckpointWritten,
    Evaluated,
    JobEnded,
    PlanChanged,
    Recovered,
    Restored,
    StepDone,
    StopRequested,
)


def step(number):
    return StepDone(
        step=number,
        epoch=1,
        loss=1.0,
        norm=1.0,
        tokens=8,
        tokens_per_s=8.0,
        step_time_s=1.0,
        learning_rate=0.1,
        applied=True,
    )


RECOVERED = Recovered(
    epoch=2,
    step=3,
    shape="1 replica",
    num_workers=1,
    lost=("n0.g1",),
    stall_s=0.1,
    micro_batches=1,
    num_followed=0,
    file="",
)
RESTORED = Restored(
    epoch=3,
    step=3,
    shape="1 replica",
    num_workers=1,
    steps_redone=1,
    stall_s=0.1,
    load_s=0.1,
    bytes_by_origin={},
    file="",
)
GOES_ON = msgspec.structs.replace(RESTORED, goes_on=True)
CHANGED = PlanChanged(
    epoch=4,
    step=5,
    shape="2 replicas",
    num_workers=2,
    joining=("n0.g1",),
    leaving=(),
    stall_s=0.1,
    bytes_moved=1,
    groups_kept=1,
    groups_made=1,
    file="",
)
WRITTEN = CheckpointWritten(step=4, path="x", seconds=1.0)
FAILED = CheckpointWritten(step=4, path="", seconds=1.0, error="disk full")
EVALUATED = Evaluated(step=4, loss=2.0, tokens=8, seconds=1.0)
ENDED = JobEnded(outcome="finished", next_step=5, loss=1.0, seconds=1.0)


class Noting(Callback):
    def __init__(self):
        self.seen = []

    def on_step(self, event):
        self.seen.append(("step", event.step))

    def on_eval(self, event):
        self.seen.append(("eval", event.step))

    def on_checkpoint(self, event):
        self.seen.append(("checkpoint", event.path))

    def on_recovery(self, event):
        self.seen.append(("recovery", event.epoch))

    def on_plan_change(self, event):
        self.seen.append(("plan", event.shape))

    def on_end(self, event):
        self.seen.append(("end", event.outcome))


def test_each_event_has_its_method():
    noting, events = Noting(), []
    happened = [step(0), EVALUATED, WRITTEN, FAILED, RECOVERED, RESTORED, GOES_ON, CHANGED, ENDED]
    with CallbackThread([noting, events.append], report=lambda lines: None) as tell:
        for event in [*happened, StopRequested(signal="SIGTERM")]:
            tell(event)
    assert noting.seen == [
        ("step", 0),
        ("eval", 4),
        ("checkpoint", "x"),
        ("recovery", 2),
        ("recovery", 3),
        ("plan", "2 replicas"),
        ("end", "finished"),
    ]
    assert events[:-1] == happened


def test_a_callback_that_raises_is_reported_its_own_lines_first_and_called_again():
    def fails(event):
        raise ValueError(f"step {event.step}")

    said, steps = [], []
    with CallbackThread([fails, steps.append], said.append) as tell:
        for number in range(10):
            tell(step(number))
    assert len(steps) == 10, "others are called all the same"
    assert len(said) == MAX_TRACEBACKS + 1
    first = said[0]
    assert first[0] == "Traceback (most recent call last):"
    assert __file__ in first[1]
    assert first[-1].endswith("failed after 1 step: ValueError: step 0; the training goes on")
    assert said[-1][0].endswith("fails failed 10 times")


def test_the_caller_never_waits_and_a_callback_that_hangs_is_left_behind():
    held, entered = threading.Event(), threading.Event()

    def hangs(event):
        entered.set()
        held.wait(30)

    said = []
    with CallbackThread([hangs], said.append, end_s=0.01) as tell:
        for number in range(4):
            tell(step(number))
        entered.wait(30)
    held.set()
    assert said == [["callbacks are not done after 0.01 s; 4 events left out"]]


def test_names_are_those_of_the_code():
    assert name_of(Noting()).endswith("test_callback.Noting")
    assert [name.rpartition(".")[2] for name, _ in handlers_of(Noting(), step(0))] == [
        "on_event",
        "on_step",
    ]
