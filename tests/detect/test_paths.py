from detect.small_job import small_plan
from holdfast.detect.facts import PathReport
from holdfast.detect.paths import PathWatch
from holdfast.detect.verdict import RECOVERED, SLOW
from holdfast.detect.watch import WatchTuning
from holdfast.plan.lanes import layout_of

TUNING = WatchTuning(max_baseline=0.05)
PAIRS = [(f"n{a}.g0", f"n{a + 1}.g0") for a in range(5)]


def reports(slow=None, num_bytes: int = 64):
    return [PathReport(pair, num_bytes, 0.01 * (slow or {}).get(pair, 1.0)) for pair in PAIRS]


def warm(**options) -> PathWatch:
    watch = PathWatch(layout_of(small_plan()), TUNING)
    for _ in range(4):
        watch.warm_up(reports(**options))
    watch.begin()
    return watch


def feed(watch, count: int, **options):
    return [v for n in range(count) for v in watch.observe(reports(**options), n, {})]


def test_a_slow_link_is_named_with_a_probe():
    (verdict,) = feed(warm(), 6, slow={PAIRS[0]: 1.2})
    assert (verdict.kind, verdict.who) == (SLOW, ("n0.g0>n1.g0",))
    assert 1.18 < verdict.factor < 1.22
    assert verdict.probe.passes[0][0] == PAIRS[0]


def test_recovery_is_noticed():
    watch = warm()
    feed(watch, 6, slow={PAIRS[0]: 1.2})
    assert [v.kind for v in feed(watch, 6)] == [RECOVERED]


def test_all_paths_of_one_worker_are_its_connection():
    (verdict,) = feed(warm(), 6, slow={PAIRS[1]: 1.5, PAIRS[2]: 1.5})
    assert verdict.who == ("n1.g0>n2.g0", "n2.g0>n3.g0")
    assert "all 2 paths of n2.g0" in verdict.reason


def test_a_reduction_of_all_workers_is_one_path_and_no_connection_of_each():
    watch = PathWatch(layout_of(small_plan()), TUNING)
    ring = ("n0.g0", "n1.g0", "n2.g0")
    for _ in range(4):
        watch.warm_up([PathReport(ring, 64, 0.01)])
    watch.begin()
    said = [v for n in range(6) for v in watch.observe([PathReport(ring, 64, 0.015)], n, {})]
    assert [(v.kind, v.who) for v in said] == [(SLOW, (">".join(ring),))]
    assert "reduction of 3 takes 1.50 times as long as its own past" in said[0].reason


def test_a_link_that_was_always_slow_is_found():
    slow = {PAIRS[0]: 1.5}
    assert [v.who for v in feed(warm(slow=slow), 6, slow=slow)] == [("n0.g0>n1.g0",)]


def test_a_slow_end_is_mentioned():
    watch = warm()
    said = [
        v for n in range(6) for v in watch.observe(reports(slow={PAIRS[0]: 1.5}), n, {"n0.g0": 2.0})
    ]
    assert "n0.g0 is itself 2.00 times as slow" in said[0].reason


def test_new_paths_are_not_judged_and_none_is_fine():
    assert feed(warm(), 6, num_bytes=128) == []
    assert PathWatch(layout_of(small_plan()), TUNING).observe(reports(), 0, {}) == []


def test_slow_messages_are_told_by_lane():
    pairs = [("n0.g0", "n0.g1"), ("n0.g2", "n0.g3"), ("n0.g4", "n0.g5"), ("n0.g6", "n0.g7")]
    watch = PathWatch(layout_of(small_plan()), TUNING)
    good = [PathReport(pair, 64, 0.01) for pair in pairs]
    watch.warm_up(good)
    watch.begin()
    for step in range(6):
        watch.observe([PathReport(pairs[0], 64, 0.02), *good[1:]], step, {})
    assert list(watch.slow_lanes()) == [(0, 1)]
