from holdfast.sim.fuzz.beats import ProgressPages, action_numbers
from support.control_jobs import small_plan
from support.fuzz_worlds import at_version, make, until, worker


def test_every_worker_has_its_backwards_and_an_agreement_after_them():
    plan = small_plan(2, 2)
    found = action_numbers(plan)
    assert set(found) == set(plan.workers)
    for numbers, agreement in found.values():
        assert numbers
        assert max(numbers.values()) < agreement


def test_only_what_differs_is_told_until_there_is_a_new_connection():
    world = at_version(make(), 2)
    pages, workers = ProgressPages(world), world.agents["n0"].workers
    (place,) = pages.changed(workers).values()
    assert place.step >= 2
    assert pages.changed(workers) == {}
    pages.forget()
    assert list(pages.changed(workers)) == ["n0.g0"]


def test_a_worker_that_is_stopped_is_told_with_every_beat():
    world = at_version(make(), 2)
    stopped = worker(world, "n0.g0")
    stopped.is_paused, world.stopped_ms[stopped.member] = True, world.clock.now_ms
    pages = ProgressPages(world)
    assert [place.is_stopped for place in pages.changed({"n0.g0": stopped}).values()] == [True]
    assert len(pages.changed({"n0.g0": stopped})) == 1


def test_a_worker_that_hangs_in_an_action_is_found_by_its_progress():
    world = at_version(make(hang_floor_ms=120, heartbeat_ms=80), 6)
    hung = worker(world, "n0.g0")
    until(world, lambda: hung.step is not None and any(p.units for p in hung.step.passages))
    hung.is_paused, world.hung_ms[hung.member] = True, world.clock.now_ms
    until(world, lambda: world.is_fenced(hung))
    assert "stays in action" in world.journal.fenced[hung.member]
    at_version(world, hung.position.version + 3)


def test_one_that_hangs_in_the_agreement_is_found_by_a_round():
    world = at_version(make(hang_floor_ms=120, heartbeat_ms=80), 6)
    hung = worker(world, "n2.g0")
    until(world, lambda: hung.step is not None and not any(p.units for p in hung.step.passages))
    hung.is_paused, world.hung_ms[hung.member] = True, world.clock.now_ms
    until(world, lambda: world.is_fenced(hung))
    assert "does not answer" in world.journal.fenced[hung.member]
    at_version(world, hung.position.version + 3)
