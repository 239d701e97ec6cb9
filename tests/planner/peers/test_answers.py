"""Peers: every rule finds what its paper says it does."""

import pytest

from holdfast.planner.decision import decide
from holdfast.planner.health import Situation
from holdfast.planner.peers.answers import PeerAnswer, best_answer
from holdfast.planner.peers.systems import PEERS
from holdfast.planner.search import Options
from support.planning import PROFILE, small_plan, view_of

BY_NAME = {peer.card.name: peer for peer in PEERS}
KINDS = ("1f1b", "zero-bubble")


def ask(name: str, view) -> PeerAnswer | None:
    return best_answer(BY_NAME[name], view, 0.0)


@pytest.mark.parametrize("name", BY_NAME)
def test_all_of_them_answer_a_single_failure(name):
    view = view_of(small_plan(3, 2, 3), ["n0.g1"], schedules=KINDS)
    found = ask(name, view)
    assert found is not None
    assert found.step_time > 0


@pytest.mark.parametrize("name", ["Oobleck-like", "ReCycle-like", "FT-HSDP-like", "Varuna-like"])
def test_some_do_not_see_slow_workers(name):
    view = view_of(small_plan(2, 2, 2), [], {"n0.g1": 3.0}, schedules=KINDS)
    found, aware = ask(name, view), ask("ResiHP-like", view)
    assert found is not None
    assert aware is not None
    assert found.step_time > 1.2 * aware.step_time


def test_a_stage_lost_everywhere_ends_rerouting():
    plan = small_plan(2, 2, 2)
    dead = [stage.workers[0] for stage in plan.stages if stage.index == 0]
    assert ask("ReCycle-like", view_of(plan, dead, schedules=KINDS)) is None


def test_restarting_peers_pay_for_it():
    view = view_of(small_plan(3, 2, 2), ["n0.g1"], schedules=KINDS)
    restart, drop = ask("checkpoint restart", view), ask("FT-HSDP-like", view)
    assert restart is not None
    assert drop is not None
    assert restart.change.time >= 60 > drop.change.time


def test_redundancy_needs_the_memory():
    plan = small_plan(2, 2, 2)
    view = view_of(plan, ["n0.g1"], schedules=KINDS)
    assert ask("Bamboo-like", view) is not None
    sizes = [view.cost.footprint.device_bytes(a, b, 2, 1, 2) for a, b in ((0, 4), (4, 8))]
    tight = small_plan(2, 2, 2, limit=int(1.2 * max(sizes)))
    assert ask("Bamboo-like", view_of(tight, ["n0.g1"], schedules=KINDS)) is None


@pytest.mark.parametrize("dead", [["n0.g1"], ["n0.g1", "n1.g0"], ["n0"]])
def test_the_planner_is_never_slower(dead):
    plan = small_plan(3, 2, 2)
    view = view_of(plan, dead, schedules=KINDS)
    mine = decide(Situation(plan, view.health, PROFILE), Options(min_copies=1, check=False)).chosen
    assert mine is not None
    for name in BY_NAME:
        found = ask(name, view)
        if found is not None:
            assert mine.step_time <= found.step_time * 1.005, name


def test_peers_do_not_share_our_short_cuts():
    """Ours skips a detour round a team of four with one loss; ReCycle's rule takes it."""
    view = view_of(small_plan(3, 2, 4), ["n0.g1"], schedules=KINDS)
    found = ask("ReCycle-like", view)
    assert found is not None
    assert found.strategy == "reroute"
