"""Who coordinates a job on several hosts, by seeds; and planted bugs that are caught."""

import pytest

from holdfast.control.succession import Succession, SuccessionVerdict
from holdfast.sim.fuzz.run import TERMS, run_seed
from holdfast.sim.fuzz.terms import LAUNCHER, TermsWorld, run_terms

pytestmark = pytest.mark.slow

SEEDS = range(60)


def world_of(num_nodes: int) -> TermsWorld:
    return next(w for w in map(TermsWorld, range(1000)) if len(w.nodes) == num_nodes)


def pass_time(world: TermsWorld, ms: int) -> None:
    end_ms = world.now_ms + ms
    while world.now_ms < end_ms:
        world.tick()


def test_no_promise_is_broken() -> None:
    runs = [run_terms(seed) for seed in SEEDS]
    assert [(seed, run.broken) for seed, run in zip(SEEDS, runs, strict=True) if run.broken] == []
    for what in runs[0].coverage:
        assert sum(run.coverage[what] for run in runs), what


def test_a_seed_of_a_campaign_has_both() -> None:
    assert run_seed(1).coverage["terms taken"]


@pytest.mark.parametrize("num_nodes", [1, 3, 6])
def test_where_nothing_fails_the_first_coordinator_stays(num_nodes) -> None:
    world = world_of(num_nodes)
    pass_time(world, 60_000)
    assert len(world.coordinators) == 1
    assert all(world.hosts[name].followed is world.coordinators[0] for name in world.nodes)


def test_a_launcher_that_is_gone_is_replaced_within_five_seconds() -> None:
    world = world_of(3)
    pass_time(world, 10_000)
    world.hosts[LAUNCHER].is_up = False
    pass_time(world, 5_000)
    assert [c.host for c in world.coordinators] == [LAUNCHER, "n0"]
    assert all(world.hosts[name].followed is world.coordinators[1] for name in world.nodes)


def test_a_launcher_that_is_cut_off_is_replaced_once() -> None:
    world = world_of(3)
    pass_time(world, 10_000)
    world.cuts = {(LAUNCHER, name) for name in world.nodes}
    pass_time(world, 60_000)
    assert len(world.coordinators) == 2


def test_a_host_that_is_cut_off_does_not_disturb_the_others() -> None:
    """Though it sees the rendezvous all the while."""
    world = world_of(4)
    pass_time(world, 10_000)
    world.cuts = {("n1", name) for name in world.hosts if name != "n1"}
    pass_time(world, 120_000)
    assert len(world.coordinators) == 1


def test_of_two_halves_the_larger_one_has_the_coordinator() -> None:
    world = world_of(5)
    pass_time(world, 10_000)
    world.hosts[LAUNCHER].is_up = False
    pass_time(world, 10_000)
    assert world.coordinators[-1].host == "n0"
    world.cuts = {(a, b) for a in ("n0", "n1") for b in ("n2", "n3", "n4", LAUNCHER)}
    pass_time(world, 120_000)
    assert [c.host for c in world.coordinators] == [LAUNCHER, "n0", "n2"]


def test_while_the_rendezvous_is_gone_nothing_changes() -> None:
    world = world_of(3)
    pass_time(world, 10_000)
    for host in world.hosts.values():
        host.sees_place = False
    before = len(world.journal)
    pass_time(world, 30_000)
    assert (len(world.coordinators), len(world.journal)) == (1, before)


def forgetful(self, term: int, now_ms: int) -> bool:
    self.term = term
    return False


def hasty(self, answers, now_ms: int) -> SuccessionVerdict:
    return SuccessionVerdict(takes=True, reason="")


def idle(self, answers, now_ms: int) -> SuccessionVerdict:
    return SuccessionVerdict(takes=False, reason="")


@pytest.mark.parametrize(
    ("method", "bug"), [("saw_term", forgetful), ("is_due", lambda self, now_ms: False)]
)
def test_planted_bugs_break_promises(monkeypatch, method, bug) -> None:
    monkeypatch.setattr(Succession, method, bug)
    found = [run_seed(seed).broken for seed in range(10)]
    assert any(one is not None and one.promise == TERMS for one in found)


def test_one_that_takes_without_asking_disturbs_the_others(monkeypatch) -> None:
    monkeypatch.setattr(Succession, "judge", hasty)
    world = world_of(4)
    pass_time(world, 10_000)
    world.cuts = {("n1", name) for name in world.hosts if name != "n1"}
    pass_time(world, 120_000)
    assert len(world.coordinators) > 2


def test_agents_that_never_take_leave_the_job_without_one(monkeypatch) -> None:
    monkeypatch.setattr(Succession, "judge", idle)
    assert any(run_terms(seed).broken for seed in range(10))
