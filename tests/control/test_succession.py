"""Which agent starts the next coordinator: one at a time, and none without need."""

import pytest

from holdfast.control.succession import PeerAnswers, Succession, SuccessionSettings

ALL_MISS_IT = PeerAnswers(num_heard=2)
PATIENCE_MS = SuccessionSettings().patience_ms
START_MS = SuccessionSettings().start_ms
ALONE_MS = SuccessionSettings().alone_ms


def connected(node: int = 0, num_nodes: int = 3, term: int = 1) -> Succession:
    found = Succession(node, num_nodes, now_ms=0)
    assert found.reached(term)
    return found


def test_while_it_is_reached_nothing_is_due() -> None:
    agent = connected()
    assert not agent.is_due(10**9)
    assert not agent.judge(ALL_MISS_IT, 10**9).takes


def test_the_lowest_node_is_first() -> None:
    agents = [connected(node) for node in range(3)]
    for agent in agents:
        agent.missed(1000)
    assert not agents[0].is_due(1000 + PATIENCE_MS - 1)
    assert [agent.is_due(1000 + PATIENCE_MS) for agent in agents] == [True, False, False]
    verdict = agents[0].judge(ALL_MISS_IT, 1000 + PATIENCE_MS)
    assert verdict.takes
    assert "term 1 has not been reached for 1.0 s" in verdict.reason


def test_among_thousands_the_last_does_not_wait_for_ever() -> None:
    last = connected(node=5000, num_nodes=5001)
    last.missed(0)
    assert last.is_due(PATIENCE_MS + SuccessionSettings().max_stagger_ms)


def test_who_is_cut_off_alone_takes_nothing() -> None:
    agent = connected()
    agent.missed(0)
    verdict = agent.judge(PeerAnswers(num_heard=2, num_reaching=1), PATIENCE_MS)
    assert not verdict.takes
    assert "1 of 2 others reach it" in verdict.reason
    assert not agent.is_due(PATIENCE_MS + 1)  # it does not ask without a pause
    assert agent.is_due(2 * PATIENCE_MS)


@pytest.mark.parametrize(
    ("heard", "by_coordinator", "takes"), [(1, 1, True), (1, 2, False), (0, 1, False), (2, 1, True)]
)
def test_of_two_halves_the_larger_one_has_it(heard, by_coordinator, takes) -> None:
    """`heard`: others, so that this half has one more."""
    agent = connected()
    agent.missed(0)
    answers = PeerAnswers(num_heard=heard, num_by_coordinator=by_coordinator)
    assert agent.judge(answers, PATIENCE_MS + ALONE_MS).takes == takes


def test_who_hears_no_other_waits_longer() -> None:
    agent = connected()
    agent.missed(0)
    assert not agent.judge(PeerAnswers(), PATIENCE_MS + ALONE_MS - 1).takes
    assert agent.judge(PeerAnswers(), PATIENCE_MS + ALONE_MS).takes


def test_the_only_node_has_no_others_to_ask() -> None:
    agent = connected(num_nodes=1)
    agent.missed(0)
    assert agent.judge(PeerAnswers(), PATIENCE_MS).takes


def test_a_coordinator_that_was_started_gets_time() -> None:
    agent = connected(node=1)
    agent.missed(0)
    assert agent.saw_term(2, 1200)
    assert not agent.saw_term(2, 1300)
    assert not agent.is_due(1200 + START_MS - 1)
    assert agent.is_due(1200 + START_MS)


def test_after_a_higher_term_no_lower_one_is_followed() -> None:
    agent = connected(term=3)
    assert agent.saw_term(4, 0)
    assert not agent.is_reached
    assert not agent.reached(3)
    assert [agent.is_current(term) for term in (3, 4, 5)] == [False, True, True]
    assert not agent.is_reached
    assert agent.reached(4)
    assert agent.is_reached


def test_tries_in_vain_become_rare() -> None:
    agent = connected()
    agent.missed(0)
    now_ms, waits = PATIENCE_MS, []
    for _ in range(8):
        assert agent.is_due(now_ms)
        agent.tried(now_ms)
        began_ms = now_ms
        while not agent.is_due(now_ms):
            now_ms += 100
        waits.append(now_ms - began_ms)
    assert waits == sorted(waits)
    assert waits[0] == START_MS
    assert waits[-1] == SuccessionSettings().max_start_ms
    assert agent.reached(2)
    agent.missed(now_ms)
    assert agent.is_due(now_ms + PATIENCE_MS)


@pytest.mark.parametrize("heard", [0, 2])
def test_a_new_agent_has_seen_none(heard) -> None:
    agent = Succession(0, 3, now_ms=500)
    assert not agent.is_due(500)
    assert agent.judge(PeerAnswers(num_heard=heard), 500 + PATIENCE_MS).takes == bool(heard)
