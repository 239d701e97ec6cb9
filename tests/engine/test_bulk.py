"""A joiner takes what it can from snapshots, and the steps since then from its source."""

import pytest
import torch

from holdfast.engine.bulk import MAX_RESULTS, AwaitedBulk, Memory
from holdfast.engine.catch_up import CatchUp
from holdfast.engine.feed import FeedHeader, state_of
from holdfast.engine.state import pack
from holdfast.plan.feeding import needed_pieces
from holdfast.snapshot.arena_plan import SnapshotOptions
from holdfast.snapshot.layout import Version
from holdfast.snapshot.load.job_state import Loaded
from support.engine_parts import make_state
from support.feeding import PAIR, Source, outcome
from support.kept_state import JOB, KeptWorkers, check, make_slices
from support.live_groups import live_members
from support.snapshots import random_state
from support.training import Task

pytestmark = pytest.mark.process  # real connections

PIECES = needed_pieces(PAIR, "n0.g1")


class Kept:
    """(Memory) Copies of a source's state, by version."""

    def __init__(self):
        self.versions, self.num_tries = {}, 0

    def keep(self, source):
        values = {
            name: [part.clone() for part in piece.parts(piece.box)]
            for name, piece in source.state.slices.items()
        }
        self.versions[source.version] = (values, source.num_updates)

    def load(self, slices, agreed_in):
        self.num_tries += 1
        able = [v for v in self.versions if v - 1 in agreed_in]
        if not able:
            return None
        values, num_updates = self.versions[max(able)]
        for piece in slices:
            for part, value in zip(piece.parts(piece.box), values[piece.tensor], strict=True):
                part.copy_(value)
        return Loaded(Version(max(able), 1), num_updates, {"local memory": 8}, ())


def feed(memory, keeps=lambda version: False):
    """Until the joiner is current: both states, and the kinds of messages that were needed."""
    source, joiner = Source(), make_state(PAIR, "n0.g1")
    with live_members("n0.g0", "n0.g1") as members:
        groups = members.make("feed", ("n0.g0", "n0.g1"))
        links = {"n0.g0": groups["n0.g1"]}
        catch_up = CatchUp(joiner, links, {"n0.g0": PIECES}, Task().optimizer, 3, memory)
        feeder = source.feeder(groups["n0.g0"], PIECES, lineage=3, announces=True)
        step = 0
        while not feeder.is_current(step):
            assert not feeder.why_closed
            source.step(step, feeder)
            step += 1
            if keeps(step):
                memory.keep(source)
            feeder.join(0.02)
        source.step(step, feeder)
        feeder.switch(step)
        while not catch_up.wait(1.0):
            pass
    assert catch_up.version == step + 1
    for pieces in PIECES.values():
        assert torch.equal(pack(state_of(source.state, pieces)), pack(state_of(joiner, pieces)))
    return catch_up


def test_the_bulk_comes_from_a_snapshot_and_the_rest_from_the_source():
    memory = Kept()
    catch_up = feed(memory, keeps=lambda version: version % 3 == 0)
    assert catch_up.bytes_from_memory == 8
    assert memory.num_tries <= MAX_RESULTS


def test_without_a_snapshot_in_time_the_source_gives_all_of_it():
    memory = Kept()
    catch_up = feed(memory)
    assert catch_up.bytes_from_memory == 0
    assert memory.num_tries == MAX_RESULTS


def test_so_it_does_where_no_snapshots_are_made():
    assert feed(None).bytes_from_memory == 0


def test_what_is_kept_until_then_is_what_the_snapshot_does_not_have():
    awaited = AwaitedBulk(Kept(), [])
    for step in range(4, 4 + MAX_RESULTS):
        assert not awaited.is_given_up
        header = FeedHeader(kind="result", version=step, outcome=outcome(step))
        awaited.add(header, torch.tensor([float(step)]))
    assert awaited.is_given_up
    assert [header.version for header, _ in awaited.since(9)] == [9, 10, 11]


def test_only_a_version_of_this_history_is_taken(tmp_path):
    plan = PAIR
    states = {step: random_state(plan, step) for step in range(1, 5)}
    kept = KeptWorkers(plan, tmp_path)
    kept.enter()
    kept.train(states, epoch=7)
    memory = Memory(SnapshotOptions(job=JOB, folder=str(tmp_path)), "n0.g1")
    slices = make_slices(plan, "n0.g1")
    assert memory.load(list(slices.values()), {0: 6, 1: 6, 2: 6, 3: 6}) is None
    found = memory.load(list(slices.values()), dict.fromkeys(range(4), 7))
    assert found is not None
    check(slices, states[found.version.step])
    assert memory.load(list(slices.values()), {8: 7}) is None, "no version is that new yet"
    kept.close()
