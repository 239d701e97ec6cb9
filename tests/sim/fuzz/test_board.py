from holdfast.plan.plan import Hop
from holdfast.sim.fuzz.board import Board
from holdfast.sim.fuzz.layout import SymbolicLayout
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
    board, step = Board(), FakeStep()
    board.join(step)
    assert isinstance(step.layout.plan.routes[0][1], Hop)
    assert board.is_free(step, 0, 1)
    assert not board.is_free(step, 0, 0)
    board.passed(step, 1, 1)
    assert step.pokes == 0
    board.passed(step, 0, 1)
    assert board.is_free(step, 0, 0)
    assert step.pokes == 1


def test_epochs_do_not_mix():
    board, old, new = Board(), FakeStep(1), FakeStep(2)
    board.join(old)
    board.join(new)
    board.passed(old, 0, 1)
    assert not board.is_free(new, 0, 0)
    assert new.pokes == 0
