"""Looking ahead: what is left after one more failure counts."""

from holdfast.planner.candidate import Candidate
from holdfast.planner.health import Situation
from holdfast.planner.lookahead import NUM_AHEAD, look_ahead
from holdfast.planner.pipelines import Sketch
from holdfast.planner.search_view import Proposal
from support.planning import PROFILE, small_plan, view_of


def candidates(view, scores):
    sketch = Sketch(view.roster.pipes, view.roster.counts)
    return [
        Candidate(f"s{n}", "why", 1.0, score=score, proposal=Proposal(f"s{n}", "why", sketch))
        for n, score in enumerate(scores)
    ]


def test_every_kind_of_team_is_asked_once_and_weighed():
    view = view_of(small_plan(2, 2, 2))
    asked = []

    def answer(plan, health):
        asked.append(health.dead)
        return 4.0

    told = look_ahead(
        view, Situation(view.plan, view.health, PROFILE), candidates(view, [10.0]), answer
    )
    assert len(asked) == 2  # the two stages; replicas are alike
    assert told[0].score == 7.0
    assert "after one more failure 4" in told[0].reason


def test_those_not_looked_at_cannot_win_by_that():
    view = view_of(small_plan(2, 2, 2))
    many = candidates(view, [10.0] * (NUM_AHEAD + 1))
    told = look_ahead(view, Situation(view.plan, view.health, PROFILE), many, lambda p, h: 8.0)
    assert [c.score for c in told] == [9.0] * NUM_AHEAD + [5.0]
