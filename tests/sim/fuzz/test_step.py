from support.fuzz_worlds import at_version, make, until, worker
from support.mutants import plant


def test_results_hold_every_micro_batch_once():
    world = at_version(make(), 1)
    one = worker(world, "n0.g0")
    found = {world.values.contributions(result) for result in one.last_results.values()}
    assert found == {(("n0.g0", 0, 0), ("n2.g0", 0, 1))}


def test_an_interrupted_step_is_completed_by_the_others():
    world = at_version(make(), 2)
    victim = worker(world, "n0.g0")
    until(world, lambda: bool(victim.sums))
    version = victim.position.version
    world.kill(victim, "SIGKILL")
    at_version(world, version + 1)
    assert world.coverage["recoveries"] == 1
    assert worker(world, "n2.g0").position.version > version


def test_without_confirmation_a_worker_agrees_before_it_has_its_results(monkeypatch):
    plant("confirm", monkeypatch)
    world = make()
    early: list[bool] = []

    def look(kind, who) -> None:
        if kind == "agreed" and who.step is not None:
            early.append(len(who.results) < len(who.step.slots))

    world.listeners.append(look)
    at_version(world, 12)
    assert any(early)


def test_what_was_reduced_for_a_step_is_gone_once_it_is_applied():
    world, left = make(), []
    world.listeners.append(lambda kind, w: left.append(w.results) if kind == "applied" else None)
    at_version(world, 3)
    assert left
    assert not any(left)
