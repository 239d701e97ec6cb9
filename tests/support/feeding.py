"""A worker that trains alone and feeds another, without the rest of a job."""

import threading

import torch

from holdfast.control.report import Outcome
from holdfast.engine.feed import Feeder
from holdfast.engine.optimizer import SliceOptimizer
from holdfast.plan.build import regular_plan
from support.engine_parts import make_state
from support.training import Task

PAIR = regular_plan(Task().units, replicas=2, micro_batches=2)


def outcome(step, applied=True):
    return Outcome(step, 1, 1.0, 8, 1.0, 0.5, applied)


def set_gradients(state, step):
    generator = torch.Generator().manual_seed(step)
    for piece in state.slices.values():
        shape = piece.parameter.shape
        piece.parameter.grad = torch.randn(shape, generator=generator, dtype=torch.float64)


class Source:
    """A worker that trains alone, with gradients out of thin air."""

    def __init__(self):
        self.state = make_state(PAIR, "n0.g0")
        self.optimizer = SliceOptimizer(Task().optimizer, self.state, 0)
        self.lock = threading.Lock()
        self.version = self.num_updates = 0

    def feeder(self, group, pieces, lineage=0, **more):
        def where():
            return self.version, self.num_updates

        return Feeder(
            group, "n0.g1", pieces, self.state, lock=self.lock, where=where, lineage=lineage, **more
        )

    def step(self, number, feeder=None, applied=True):
        with self.lock:
            set_gradients(self.state, number)
            told = outcome(number, applied)
            if applied:
                self.optimizer.apply(number, told)
            self.version, self.num_updates = number + 1, self.num_updates + applied
            if feeder is not None:
                feeder.give_result(told)
