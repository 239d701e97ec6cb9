"""A new start: state comes from a snapshot, and the layout may be any that the live workers allow.

Needed when the last live copy of something is gone. Offered only then: with a live copy of
everything, the same layouts can be reached by moving state.
"""

from collections.abc import Iterator

from holdfast.planner.pipelines import Team
from holdfast.planner.search_view import Proposal, SearchView
from holdfast.planner.strategies.arrange import deal, ways_to_cut

NUM_TRIED = 12


def restart(view: SearchView) -> Iterator[Proposal]:
    """Regular pipelines from whatever is alive, and the pipelines that are whole as they are."""
    teams = live_teams(view)
    reason = "a slice has no live holder: restored from a snapshot"
    if not teams:
        yield Proposal("restart", reason, refusal="no worker is alive", restores=True)
        return
    home = max((pipe.depth for pipe in view.roster.pipes), default=len(view.plan.stages))
    found = False
    for kind in view.schedules:
        for lengths in ways_to_cut(len(teams), home)[:NUM_TRIED]:
            pipes = deal(view, teams, lengths, kind, iter(range(len(lengths))))
            if pipes is not None and len(pipes) <= view.total:
                found = True
                words = f"{reason} onto pipelines of {'+'.join(map(str, lengths))} stages"
                yield Proposal("restart", words, view.shared(pipes, kind), restores=True)
    if not found:
        yield Proposal("restart", reason, refusal="the live workers cannot hold the model",
                       restores=True)  # fmt: skip


def live_teams(view: SearchView) -> list[Team]:
    """Every team with what is left of it, then teams of spares."""
    teams: list[Team] = []
    seen: dict[str, None] = {}
    stages = [view.team(s.workers, s.tensor, s.shard) for s in view.plan.stages]
    for team in stages:
        live = [w for w in view.live(team) if w not in seen]
        best = view.best_team(live, team.shard) if live else None
        if best is not None:
            teams.append(best)
            seen.update(dict.fromkeys(best.workers))
    spares = [w for w in view.spares if w not in seen]
    for row in view.by_node(spares).values():
        for at in range(0, len(row), view.widest):
            best = view.best_team(row[at : at + view.widest])
            teams += [best] if best else []
    return teams
