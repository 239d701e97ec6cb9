from holdfast.plan.plan import Plan
from holdfast.sim.fuzz.promises.exactly_once import ExactlyOnce
from holdfast.sim.fuzz.step import Step
from support.control_jobs import small_plan
from support.fuzz_worlds import broken_promise, make


def sharded() -> Plan:
    """Each of two replicas has two shard ranks, each rank a micro-batch of its own."""
    return small_plan(2, 1, shard=2, micro_batches=4)


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


def test_shard_ranks_that_add_their_own_micro_batches_keep_it():
    assert broken_promise(make(ExactlyOnce(), plan=sharded()), 5) == ""


def test_a_micro_batch_that_two_shard_ranks_add_is_seen(monkeypatch):
    contribution = Step._contribution
    ranks = sharded().stages[0].workers

    def both(step, slot):
        found = contribution(step, slot)
        if step.number != 3 or step.worker.name not in ranks:
            return found
        return [(name, adder, number) for _, adder, number in found for name in ranks]

    monkeypatch.setattr(Step, "_contribution", both)
    assert broken_promise(make(ExactlyOnce(), plan=sharded()), 8) == "P1"
