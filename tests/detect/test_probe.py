import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.probe import (
    ProbeOrder,
    ProbeResult,
    interpret,
    into_passes,
    order_probe,
    ring_pairs,
)

NAMES = [f"n{n}.g0" for n in range(9)]
pairs = st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True).map(tuple)


def test_a_ring_takes_two_passes_or_three():
    assert len(into_passes(ring_pairs(NAMES[:8]))) == 2
    assert len(into_passes(ring_pairs(NAMES[:9]))) == 3
    assert into_passes(ring_pairs(NAMES[:2])) == ((("n0.g0", "n1.g0"),),)


@pytest.mark.slow
@given(st.lists(pairs, max_size=20))
def test_no_worker_takes_part_twice_in_a_pass(chosen):
    passes = into_passes(chosen)
    assert sorted(pair for members in passes for pair in members) == sorted(set(chosen))
    for members in passes:
        ends = [worker for pair in members for worker in pair]
        assert len(ends) == len(set(ends))


def test_controls_outnumber_the_suspects():
    order = order_probe(["n0.g0", "n1.g0"], [], NAMES)
    assert order.controls == ("n2.g0", "n3.g0", "n4.g0")
    assert order.matrix == ("n0.g0", "n1.g0", "n2.g0", "n3.g0", "n4.g0")


def test_the_slow_one_of_a_group_is_named_and_the_others_are_cleared():
    order = order_probe(NAMES[:4], [], NAMES)
    times = dict.fromkeys(order.matrix, 1.0) | {"n2.g0": 1.5}
    findings = interpret(order, ProbeResult(matrix=times))
    assert [(f.who, f.slow) for f in findings] == [
        (("n2.g0",), True),
        (("n0.g0",), False),
        (("n1.g0",), False),
        (("n3.g0",), False),
    ]
    assert findings[0].factor == 1.5
    assert "matrix product 1.5e+03 ms against 1e+03 ms" in findings[0].reason


def test_the_slow_link_of_a_ring_is_named():
    ring = ring_pairs(NAMES[:6])
    times = dict.fromkeys(ring, 0.01) | {ring[3]: 0.02}
    findings = interpret(order_probe([], ring), ProbeResult(pairs=times))
    assert [f.who for f in findings if f.slow] == [ring[3]]


def test_all_links_of_one_worker_are_its_own_connection():
    ring = ring_pairs(NAMES[:6])
    times = {pair: 0.03 if "n2.g0" in pair else 0.01 for pair in ring}
    slow = [f for f in interpret(order_probe([], ring), ProbeResult(pairs=times)) if f.slow]
    assert [f.who for f in slow] == [("n2.g0",)]
    assert "all 2 links" in slow[0].reason


def test_no_answer_is_no_finding():
    assert interpret(ProbeOrder(matrix=("n0.g0",)), ProbeResult()) == []


def test_a_control_that_has_just_become_slow_does_not_make_a_slow_worker_look_faster():
    order = order_probe(["n0.g0"], [], ["n1.g0", "n2.g0"])
    assert order.controls == ("n1.g0", "n2.g0")
    times = {"n0.g0": 0.03, "n1.g0": 0.02, "n2.g0": 0.01}
    (finding,) = interpret(order, ProbeResult(matrix=times))
    assert finding.who == ("n0.g0",)
    assert finding.factor == pytest.approx(3.0)


def test_a_probe_that_explains_little_of_a_suspicion_does_not_confirm_it():
    order = order_probe(["n0.g0"], [], ["n1.g0", "n2.g0"])

    def confirmed(factor, suspected_factor):
        result = ProbeResult(matrix={"n0.g0": 0.01 * factor, "n1.g0": 0.01, "n2.g0": 0.01})
        (finding,) = interpret(order, result, suspected_factor)
        return finding.slow

    assert confirmed(1.06, 1.1)
    assert not confirmed(1.06, 1.25)
    assert confirmed(1.1, 1.25)
    assert not confirmed(1.1, 2.0)
    assert not confirmed(1.04, 1.0)
