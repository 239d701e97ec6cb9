from holdfast.control.joining import JoinerParts, SourceFeed


def test_a_unit_once_given_stays_current():
    parts = JoinerParts([0, 1], lineage=1)
    assert parts.arrived(0, 5, 1)
    assert parts.updated(0, 5)
    assert parts.versions == {0: 6}
    assert (parts.current(6), parts.is_current(6)) == ((0,), False)
    assert parts.arrived(1, 6, 1)
    assert parts.is_current(6)


def test_an_update_that_does_not_fit_drops_the_unit():
    parts = JoinerParts([0], lineage=1)
    parts.arrived(0, 5, 1)
    assert not parts.updated(0, 6)
    assert parts.versions == {}


def test_another_history_is_refused_and_recoveries_forget():
    parts = JoinerParts([0], lineage=2)
    assert not parts.arrived(0, 5, 1)
    parts.arrived(0, 5, 2)
    parts.forget()
    assert parts.versions == {}


def test_a_source_gives_one_unit_after_the_other():
    feed = SourceFeed("n1.g0", [2, 3])
    assert feed.next_unit(4) == 2
    feed.sending(2, 4)
    assert feed.next_unit(4) is None
    feed.sent()
    assert feed.next_unit(4) == 3


def test_what_was_not_captured_or_confirmed_in_its_step_is_given_again():
    feed = SourceFeed("n1.g0", [2])
    feed.sending(2, 4)
    assert feed.stepped(4) == ()
    feed.confirmed(2, 4)
    assert not feed.is_current(5)
    assert feed.next_unit(5) == 2


def test_results_follow_an_announced_version():
    feed = SourceFeed("n1.g0", [2, 3])
    feed.announced(4)
    assert feed.next_unit(4) is None
    assert feed.stepped(4) == (2, 3)
    assert not feed.is_current(5)
    feed.refused(2)
    assert feed.next_unit(5) == 2
    feed.confirmed(3, 5)
    assert feed.stepped(5) == (3,)


def test_results_follow_what_was_given():
    feed = SourceFeed("n1.g0", [2, 3])
    feed.sending(2, 4)
    feed.confirmed(2, 4)
    assert feed.stepped(4) == (2,)
    feed.confirmed(2, 5)
    feed.sending(3, 5)
    feed.confirmed(3, 5)
    assert feed.is_current(5)
    assert not feed.is_current(6)


def test_a_refused_unit_is_given_again_and_a_closed_feed_is_never_current():
    feed = SourceFeed("n1.g0", [2])
    feed.sending(2, 4)
    feed.confirmed(2, 4)
    feed.refused(2)
    assert not feed.is_current(4)
    assert feed.next_unit(4) == 2
    feed.close()
    assert feed.next_unit(4) is None
    assert not feed.is_current(4)
