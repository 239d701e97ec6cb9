from holdfast.sim.fuzz.promises.exactly_once import ExactlyOnce
from holdfast.sim.fuzz.step import Step
from support.fuzz_worlds import broken_promise, make


def test_a_healthy_run_keeps_it():
    assert broken_promise(make(ExactlyOnce()), 5) == ""


def test_a_micro_batch_that_counts_twice_is_seen(monkeypatch):
    contribution = Step._contribution

    def doubled(step, slot):
        found = contribution(step, slot)
        return found + found if step.number == 3 and isinstance(found, list) else found

    monkeypatch.setattr(Step, "_contribution", doubled)
    assert broken_promise(make(ExactlyOnce()), 8) == "P1"


def test_a_micro_batch_that_is_left_out_is_seen(monkeypatch):
    contribution = Step._contribution

    def shortened(step, slot):
        found = contribution(step, slot)
        return found[1:] if step.number == 3 and isinstance(found, list) else found

    monkeypatch.setattr(Step, "_contribution", shortened)
    assert broken_promise(make(ExactlyOnce()), 8) == "P1"
