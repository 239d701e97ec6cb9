from holdfast.sim.fuzz.clock import Clock


def test_events_come_in_order_of_time_and_making():
    clock, seen = Clock(), []
    clock.after(5, seen.append, "late")
    clock.after(1, seen.append, "first")
    clock.at(1, seen.append, "second")
    while clock.step():
        pass
    assert seen == ["first", "second", "late"]
    assert (clock.now_ms, clock.num_events) == (5, 3)


def test_nothing_happens_in_the_past():
    clock, seen = Clock(), []
    clock.after(5, lambda: clock.at(1, seen.append, clock.now_ms))
    while clock.step():
        pass
    assert seen == [5]


def test_only_clocks_of_processes_go_on_while_the_world_is_suspended():
    clock, seen = Clock(), []
    clock.after(5, lambda: seen.append((clock.now_ms, clock.process_ms)))
    clock.suspended_ms += 100
    assert clock.step()
    assert seen == [(5, 105)]


def test_the_digest_tells_traces_apart():
    one, other = Clock(), Clock()
    for clock in (one, other):
        clock.note("same")
    assert one.digest == other.digest
    one.note("different")
    assert one.digest != other.digest
    assert list(one.trace) == ["0 same", "0 different"]
