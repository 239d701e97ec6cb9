import numpy as np

from detect.test_localize import PREDICTOR, moments
from holdfast.detect.localize import Moment
from holdfast.detect.suspicion import lane_pairs, suspicion
from holdfast.detect.verdict import SUSPECT

CASE = {"factor": 1.2, "noise": 0.01, "step": 7}


def test_suspects_come_with_a_probe():
    verdict = suspicion(PREDICTOR, moments(3), **CASE, lanes=True, paths=False)
    assert (verdict.kind, verdict.who[0]) == (SUSPECT, "n0.g3")
    assert verdict.probe.matrix[0] == "n0.g3"
    assert verdict.probe.controls
    assert "best explained by n0.g3" in verdict.reason


def test_a_link_is_probed_with_messages():
    seen = moments(link=2, with_ends=True)
    verdict = suspicion(PREDICTOR, seen, **CASE, lanes=False, paths=True)
    assert verdict.who == ("n0.g4>n0.g5",)
    assert verdict.probe.passes[0] == (("n0.g4", "n0.g5"),)


def test_what_nothing_explains_is_said_so():
    strange = [
        Moment(moment.durations, moment.step_time * factor, None)
        for moment, factor in zip(moments(), np.tile([20.0, 1.0], 4), strict=True)
    ]
    verdict = suspicion(PREDICTOR, strange, **CASE, lanes=True, paths=True)
    assert verdict.who == ()
    assert "no single slow worker or link explains it" in verdict.reason


def test_lanes_without_a_link_have_no_pairs():
    assert lane_pairs(PREDICTOR, (0, 5)) == []
