from holdfast.control import recovery
from holdfast.control.facts import WorkerHung
from holdfast.control.rules import Rules
from holdfast.sim.fuzz.promises.no_split import NoSplit
from support.control_jobs import small_plan
from support.fuzz_worlds import at_version, broken_promise, make, worker


def fenced_alone(**options):
    """All members of the epoch are fenced by mistake, and nobody can reach them to say so. A
    snapshot is elsewhere, and so is a spare.
    """
    world = make(NoSplit(), plan=small_plan(1, 1), spares=("n9.g0",), **options)
    at_version(world, 3)
    world.agents["n9"].kept = list(world.agents["n0"].kept)
    world.agents["n9"].disconnect()
    world.agents["n0"].is_cut_off = True
    world.agents["n0"].disconnect()
    world.office.take(WorkerHung(worker(world, "n0.g0").member, "a false alarm"))
    return world


def test_nobody_else_goes_on_while_the_fenced_may():
    world = fenced_alone()
    assert broken_promise(world, 30) == ""
    assert world.coverage["restores"] == 0


def test_two_sets_that_go_on_are_seen(monkeypatch):
    monkeypatch.setattr(recovery, "_is_stopped", lambda *_: True)
    assert broken_promise(fenced_alone(), 60) == "P8"


def test_the_rule_that_prevents_it_is_needed():
    assert broken_promise(fenced_alone(rules=Rules(proof=False)), 60) == "P8"
