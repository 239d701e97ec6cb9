"""The search in rounds: the first is quick, none makes the answer worse, the last misses little."""

import pytest

from holdfast.planner.decision import decide, decisions
from holdfast.planner.health import Health, Situation, health_of
from holdfast.planner.peers.answers import best_answer
from holdfast.planner.peers.systems import PEERS
from holdfast.planner.search import ALL_ROUNDS, Options, Search, schedules_for
from support.planning import PROFILE, small_plan, view_of

FREE = Options(min_copies=1, check=False)


def situation(shape: tuple[int, int, int], dead: list[str], slow: dict[str, float]) -> Situation:
    plan = small_plan(*shape)
    return Situation(plan, health_of(plan, dead, slow), PROFILE)


CASES = [
    ((3, 2, 2), ["n0.g1"], {}),
    ((2, 4, 1), ["n0.g1"], {"n1.g2": 2.0}),
    ((1, 4, 2), [], {"n0.g1": 3.0, "n1.g0": 1.5}),
    ((2, 2, 3), ["n0.g1", "n1.g2"], {"n2.g1": 2.0}),
]


@pytest.mark.parametrize(("shape", "dead", "slow"), CASES)
def test_rounds_never_make_it_worse(shape, dead, slow):
    found = list(decisions(situation(shape, dead, slow), FREE))
    assert [decision.rounds for decision in found] == list(range(1, ALL_ROUNDS + 1))
    scores = [decision.chosen.score for decision in found if decision.chosen is not None]
    assert len(scores) == ALL_ROUNDS
    assert scores == sorted(scores)


@pytest.mark.parametrize("rounds", [1, ALL_ROUNDS])
def test_as_many_rounds_find_the_same_again(rounds):
    given = situation(*CASES[1])
    search = decisions(given, FREE)
    told = [next(search) for _ in range(rounds)][-1]
    again = decide(given, Options(min_copies=1, check=False, rounds=rounds))
    assert (again.plan, again.chosen, again.rounds) == (told.plan, told.chosen, rounds)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dead", "slow"), CASES)
def test_no_peer_finds_more_than_all_rounds(shape, dead, slow):
    given = situation(shape, dead, slow)
    options = Options(min_copies=1, check=False, rounds=ALL_ROUNDS)
    mine = decide(given, options).chosen
    assert mine is not None
    view = view_of(given.plan, dead, slow, schedules=("1f1b", "zero-bubble"))
    for system in PEERS:
        theirs = best_answer(system, view, 0.0)
        if theirs is not None:
            assert mine.step_time <= theirs.step_time * 1.005, system.key


def test_groups_that_are_whole_are_cut_only_where_they_may_be():
    """Two groups, one without a member: what is whole is cut, too, where that is faster."""
    given = situation((2, 1, 4), ["n0.g1"], {})
    options = Options(min_copies=1, check=False, rounds=ALL_ROUNDS)
    free = decide(given, options)
    kept = decide(given, Options(min_copies=1, check=False, rounds=ALL_ROUNDS, recut=False))
    assert free.plan is not None
    assert kept.plan is not None
    whole = given.plan.stages[1].workers
    assert whole in [stage.workers for stage in kept.plan.stages]
    assert whole not in [stage.workers for stage in free.plan.stages]
    assert free.chosen.step_time < kept.chosen.step_time


def test_a_proposal_counts_once_however_many_rounds_make_it():
    search = Search(situation(*CASES[0]), FREE)
    *_, ranked = search.rounds(lost=False)
    sketches = [c.proposal.sketch for c in ranked if c.proposal and not c.proposal.plan]
    assert len(sketches) == len(set(sketches))


def test_the_view_is_as_before_after_every_round():
    search = Search(situation(*CASES[0]), FREE)
    for _ in search.rounds(lost=False):
        assert (search.view.thorough, search.view.powers) == (False, False)
        assert search.view.schedules == ("1f1b", "zero-bubble")


@pytest.mark.parametrize(
    ("kind", "split", "schedules"),
    [
        ("1f1b", True, ("1f1b", "zero-bubble")),
        ("1f1b", False, ("1f1b",)),
        ("gpipe", True, ("gpipe",)),
        ("interleaved", True, ("1f1b", "zero-bubble")),
    ],
)
def test_schedules_that_are_searched(kind, split, schedules):
    plan = small_plan(2, 2, 1, schedule=kind)
    assert schedules_for(plan, Options(split_backward=split)) == schedules
    assert decide(Situation(plan, Health(), PROFILE), FREE).plan is not None
