import numpy as np

from detect.small_job import small_plan
from holdfast.detect.verdict import RECOVERED, SLOW
from holdfast.detect.verdict_text import describe_common, path_verdict, worker_verdicts
from holdfast.detect.watch import Shift, Watch
from holdfast.plan.lanes import layout_of


def verdicts(plan, *shifts: Shift):
    layout = layout_of(plan)
    classes = np.array([layout.lane_of_worker[w] % 2 for w in plan.workers], dtype=np.int64)
    watch = Watch(classes)
    for shift in shifts:
        watch.level[shift.member] = shift.new
    return worker_verdicts(plan, layout, watch, shifts, 9, knows_work=True)


def test_a_worker_is_told_with_role_peers_and_noise():
    (verdict,) = verdicts(small_plan(), Shift(2, 0.0, float(np.log(1.5)), 0.99, 3, 0.01))
    assert (verdict.kind, verdict.who, verdict.step) == (SLOW, ("n0.g2",), 9)
    assert verdict.reason == (
        "n0.g2, r1.s0: computes 1.50 times as long as its 3 peers for 3 steps, the work accounted "
        "for (noise 1 %)"
    )


def test_a_tensor_group_is_one_verdict_and_a_probe_will_tell():
    plan = small_plan(tensor=2)
    shifts = [Shift(n, 0.0, 0.3, 0.99, 3, 0.01) for n in (0, 1)]
    (verdict,) = verdicts(plan, *shifts)
    assert verdict.who == ("n0.g0", "n0.g1")
    assert "one of them holds up the others" in verdict.reason
    assert verdict.probe.matrix[:2] == verdict.who


def test_recovery_asks_for_no_probe():
    (verdict,) = verdicts(small_plan(), Shift(2, 0.4, 0.0, 0.99, 3, 0.01))
    assert (verdict.kind, verdict.probe) == (RECOVERED, None)


def test_a_ring_is_probed_link_by_link():
    shift = Shift(0, 0.0, 0.3, 0.9, 3, 0.01)
    verdict = path_verdict("n0.g0>n1.g0>n2.g0>n3.g0", shift, 1, 0, "", ())
    assert len(verdict.probe.passes) == 2
    assert "reduction of 4 takes" in verdict.reason


def test_a_common_cause_names_no_worker():
    assert describe_common(0.1, 3, 1).who == ()
