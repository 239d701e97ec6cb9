import msgspec
import pytest

from holdfast.observe.run.summary import (
    present,
    state_of,
    summarise,
    summarise_incidents,
    summarise_notes,
    unsettled,
)
from support.made_runs import MadeRun, disturbed_run


def test_everything_is_plain_data():
    run = disturbed_run().end().model()
    data = summarise(run, {"n0.g0": "r0.s0"}, run.now_s)
    assert msgspec.json.decode(msgspec.json.encode(data))["name"] == "x"
    assert (data["state"], data["next_step"], data["steps_redone"]) == ("finished", 60, 4)
    assert sum(part["seconds"] for part in data["goodput"]["parts"]) == pytest.approx(
        data["now_s"], abs=0.01
    )
    worker = next(worker for worker in data["workers"] if worker["name"] == "n1.g0")
    assert (worker["state"], worker["process"], worker["num_failures"]) == ("alive", 2, 1)
    assert data["checkpoints"]["number"] == 1
    assert [incident["kind"] for incident in summarise_incidents(run, [1, 2])] == [
        "coordinator",
        "restore",
    ]
    assert len(summarise_notes(run, 2)) == len(run.notes) - 2


def test_states_of_a_job():
    run = MadeRun()
    assert state_of(run.start().model(), False) == "training"
    assert state_of(run.steps(9).model(), True) == "silent"
    assert state_of(run.end("failed").model(), False) == "failed"


def test_time_stands_still_when_there_is_no_news():
    run = MadeRun().start().steps(9).model()
    assert present(run, run.now_s + 5) == (run.now_s + 5, False)
    assert present(run, run.now_s + 5000) == (run.now_s, True)


def test_only_incidents_that_may_change_are_told_again():
    run = MadeRun().start().steps(9).lose("n1.g0").steps(2)
    assert unsettled(run.model()) == [0]
    assert unsettled(run.back("n1.g0").steps(1).model()) == []
