from holdfast.detect.facts import PathReport
from holdfast.detect.meter import StepMeter


def test_times_are_added_up_and_paths_given_by_their_median():
    meter = StepMeter("n0.g0")
    meter.computed("F", 1.0, ended=1.0)
    meter.computed("F", 2.0, ended=4.0)
    meter.computed("B", 3.0)
    for seconds in (0.1, 9.0, 0.2):
        meter.moved(("n0.g0", "n0.g1"), 64, seconds)
    worker, paths = meter.report()
    assert (worker.worker, worker.times, worker.ended) == ("n0.g0", {"F": 3.0, "B": 3.0}, 4.0)
    assert list(paths) == [PathReport(("n0.g0", "n0.g1"), 64, 0.2)]


def test_a_report_starts_anew():
    meter = StepMeter("n0.g0")
    meter.computed("F", 1.0)
    meter.report()
    worker, paths = meter.report()
    assert (worker.times, list(paths)) == ({}, [])
