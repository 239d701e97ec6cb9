import numpy as np

from holdfast.observe.run.series import StepSeries
from support.job_events import step


def filled(number):
    series = StepSeries()
    for n in range(number):
        series.add(0.1 * n, step(n, 5.0 if n == 700 else 0.1, None if n == 3 else 1.0))
    return series


def test_peaks_stay_when_steps_are_thinned_out():
    points = filled(10_000).thinned(200)
    assert len(points["at_s"]) <= 202
    assert max(points["step_time_s"]) == 5.0
    assert points["step"] == sorted(points["step"])
    assert (points["step"][0], points["step"][-1]) == (0, 9999)


def test_few_steps_are_all_there():
    points = filled(10).thinned(200)
    assert points["step"] == list(range(10))
    assert points["loss"][3] is None


def test_a_stretch_of_time():
    points = filled(1000).thinned(50, start_s=10.0, end_s=11.0)
    assert points["at_s"][0] <= 10.0
    assert points["at_s"][-1] >= 11.0
    assert len(points["at_s"]) == 13


def test_steps_done_again_are_counted_once():
    series = StepSeries()
    for number in (0, 1, 2, 3, 1, 2, 3, 4):
        series.add(0.0, step(number, 0.1))
    assert series.kept().tolist() == [True, False, False, False, True, True, True, True]
    assert series.kept(next_step=3).tolist()[-4:] == [True, True, False, False]
    assert StepSeries().kept().tolist() == []


def test_the_newest():
    series = filled(100)
    assert series.since(98)["step"] == [98, 99]
    assert series.since(0, most=5)["step"] == [95, 96, 97, 98, 99]
    assert series.last("step") == 99
    assert series.first("step") == 0
    assert np.isnan(series.column("loss")[3])
    assert StepSeries().last("loss") is None
