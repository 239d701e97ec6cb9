from support.fuzz_worlds import at_version, make, until, worker


def test_what_happens_is_counted():
    world = at_version(make(), 2)
    assert (world.coverage["starts"], world.coverage["rounds"]) == (1, 0)
    world.kill(worker(world, "n0.g0"), "SIGKILL")
    until(world, lambda: world.coverage["changes entered by all"] == 1)
    assert world.coverage["verdicts"] == 1
    assert world.coverage["recoveries"] == 1
    assert world.coverage["joins begun"] == 1
    assert world.coverage["half-done switches"] == 0
