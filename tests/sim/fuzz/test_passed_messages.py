from holdfast.plan.plan import Hop
from holdfast.sim.fuzz.layout import SymbolicLayout
from holdfast.sim.fuzz.passed_messages import PassedMessages
from support.control_jobs import small_plan


class FakeStep:
    def __init__(self, epoch: int = 1) -> None:
        self.epoch, self.number, self.pokes = epoch, 0, 0
        self.layout = SymbolicLayout(small_plan(1, 2))

    def poke(self) -> None:
        self.pokes += 1

    def waits_for(self, micro_batch: int, place: int) -> bool:
        return (micro_batch, place) == (0, 0)


def test_a_hop_waits_for_the_next_one():
    passed, step = PassedMessages(), FakeStep()
    passed.join(step)
    assert isinstance(step.layout.plan.routes[0][1], Hop)
    assert passed.is_free(step, 0, 1)
    assert not passed.is_free(step, 0, 0)
    passed.passed(step, 1, 1)
    assert step.pokes == 0
    passed.passed(step, 0, 1)
    assert passed.is_free(step, 0, 0)
    assert step.pokes == 1


def test_epochs_do_not_mix():
    passed, old, new = PassedMessages(), FakeStep(1), FakeStep(2)
    passed.join(old)
    passed.join(new)
    passed.passed(old, 0, 1)
    assert not passed.is_free(new, 0, 0)
    assert new.pokes == 0
