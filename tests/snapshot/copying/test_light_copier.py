"""Light versions: parameters and gradients are given, and what is loaded is what full versions
have, to the last bit; whatever happens to the process that completes them.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from holdfast.control.report import Outcome
from holdfast.engine.optimizer import SliceOptimizer, advance_moments
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.snapshot.copying.light_copier import LightCopier
from holdfast.snapshot.layout import Version
from holdfast.snapshot.memory.light_versions import LightVersions
from holdfast.snapshot.share import OTHER_BYTES
from support.kept_state import KeptWorker, KeptWorkers, fill, make_slices
from support.random_plans import make_units

CONFIG = OptimizerConfig()
OUTCOME = Outcome(step=0, epoch=1, loss=1.0, num_tokens=1, norm=1.0, clip_factor=1.0, applied=True)
PLANS = {
    "parity over two nodes": regular_plan(
        make_units(2), replicas=2, micro_batches=2, devices_per_node=1
    ),
    "parity over three nodes": regular_plan(
        make_units(3), replicas=3, tensor=2, micro_batches=3, devices_per_node=2
    ),
}
NUM_STEPS = 8


def train_plain(plan, num_steps, skipped=()):
    """The optimizer of a job on whole tensors: state and gradients by step."""
    torch.manual_seed(7)
    whole = {
        (name, kind): torch.zeros(spec.shape) if kind != "parameter" else torch.randn(spec.shape)
        for name, spec in HolderMap(plan).tensors.items()
        for kind in ("parameter", "exp_avg", "exp_avg_sq")
    }
    alone = regular_plan(plan.units, micro_batches=1)
    state = SimpleNamespace(plan=alone, slices=make_slices(alone, "n0.g0", whole), buckets={})
    optimizer = SliceOptimizer(CONFIG, state, 0)
    states, gradients = {}, {}
    for step in range(1, num_steps + 1):
        for piece in state.slices.values():
            piece.parameter.grad = torch.randn_like(piece.parameter)
        gradients[step] = {name: piece.gradient for name, piece in state.slices.items()}
        if step not in skipped:
            optimizer.apply_scaled(step, OUTCOME)
        states[step] = {
            (name, kind): piece.part(kind, piece.box).clone()
            for name, piece in state.slices.items()
            for kind in ("parameter", "exp_avg", "exp_avg_sq")
        }
    return states, gradients


class LightKeptWorker(KeptWorker):
    """The node's process answers at once, unless it was killed."""

    def __init__(self, kept, worker):
        super().__init__(kept, worker)
        self.given = []
        self.num_updates = 0
        self.snapshots._num_updates = lambda: self.num_updates
        self.process = self._begin_process()
        self.dies_at = ()

    def _begin_process(self):
        return LightVersions(partial(advance_moments, CONFIG))

    def kill_process(self):
        self.process.close()
        self.process = self._begin_process()

    def light_given(self, version, before, cost):
        self.given.append((version.step, before.step if before else None))
        self.costs.append(cost)
        error = ""
        try:
            if version.step in self.dies_at:
                self.kill_process()
                raise HoldfastError("it was killed")
            self.process.complete(self._worker, self.path, self.staging, version, before)
        except HoldfastError as failure:
            error = str(failure)
        self.snapshots.answered(version, error)

    def train(self, step, states, gradients):
        self.snapshots.applying()
        for piece in self.slices.values():
            index = tuple(slice(low, high) for low, high in piece.box)
            piece.parameter.grad = gradients[step][piece.tensor][index].clone()
        self.num_updates += 1
        fill(self.slices, states[step])
        self.position.version, self.position.outcome = step, SimpleNamespace(epoch=1)
        self.snapshots.applied(step)
        for piece in self.slices.values():
            piece.parameter.grad = None  # the next step begins


@pytest.fixture(params=PLANS)
def kept(request, tmp_path):
    kept = KeptWorkers(PLANS[request.param], tmp_path, mode="light")
    kept.by_name = {worker: LightKeptWorker(kept, worker) for worker in kept.plan.workers}
    kept.enter()
    yield kept
    kept.close()
    for one in kept.by_name.values():
        one.process.close()


def first(kept):
    return kept.by_name[kept.plan.workers[0]]


def train(kept, last=NUM_STEPS, skipped=()):
    states, gradients = train_plain(kept.plan, last, skipped)
    for step in states:
        if step not in skipped:
            for one in kept.by_name.values():
                one.train(step, states, gradients)
    return states


def test_what_is_loaded_is_what_full_versions_have(kept):
    states = train(kept)
    assert first(kept).given == [(1, None), *((step, step - 1) for step in range(2, NUM_STEPS))]
    for step in range(NUM_STEPS - 3, NUM_STEPS):
        for worker in kept.plan.workers:
            kept.load(kept.plan, worker, Version(step, 1), states[step])


def test_a_lost_nodes_state_is_computed_from_parity(kept):
    states = train(kept)
    kept.arenas["n0"].lose()
    kept.load(kept.plan, kept.plan.workers[0], Version(NUM_STEPS - 1, 1), states[NUM_STEPS - 1])


def test_less_is_copied(kept):
    train(kept)
    base, *light = [cost.num_bytes - OTHER_BYTES for cost in first(kept).costs]
    assert light == [2 * base // 3] * (NUM_STEPS - 2)


def test_an_update_that_was_skipped_is_no_gap(kept):
    states = train(kept, skipped=(4,))
    assert (5, 3) in first(kept).given
    kept.load(kept.plan, kept.plan.workers[0], Version(7, 1), states[7])


def test_an_update_that_was_not_given_needs_a_base(kept):
    states, gradients = train_plain(kept.plan, 6)
    for one in kept.by_name.values():
        for step in states:
            one.snapshots.set_every(3 if step == 2 else 1)
            one.train(step, states, gradients)
    assert first(kept).given == [(1, None), (3, None), (4, 3), (5, 4)]
    kept.load(kept.plan, kept.plan.workers[0], Version(5, 1), states[5])


def test_a_killed_process_gets_a_base_before_state_changes(kept):
    for one in kept.by_name.values():
        one.dies_at = (3,)
    states = train(kept)
    assert first(kept).given[:5] == [(1, None), (2, 1), (3, 2), (4, None), (5, 4)]
    for step in (4, 5, 6, 7):
        kept.load(kept.plan, kept.plan.workers[-1], Version(step, 1), states[step])


def test_what_was_begun_when_the_process_died_is_given_again_as_a_base(kept):
    """Its death is known only while the next version is copied."""
    one = first(kept)
    late = []
    one.snapshots.answered = lambda version, error: late.append((version, error))
    states, gradients = train_plain(kept.plan, 4)
    for step in (1, 2):
        one.train(step, states, gradients)
    copier = one.snapshots._copier
    assert isinstance(copier, LightCopier)
    one.kill_process()
    del one.snapshots.answered
    copier.answered(late[0][0], "it was killed")
    one.train(3, states, gradients)
    assert one.given == [(1, None), (2, None)]


def test_a_process_that_cannot_complete_anything_ends_the_snapshots_of_the_epoch(kept):
    one = first(kept)
    one.dies_at = range(100)
    states, gradients = train_plain(kept.plan, 6)
    for step in states:
        one.train(step, states, gradients)
    assert one.snapshots._copier is None
    assert one.given == [(1, None), (2, None)]
