from holdfast.control.report import Report, StepProgress


def test_a_step_that_was_not_begun_has_no_progress() -> None:
    begun = StepProgress(4, {(0, 0): (1, 2)}, ((1, 0),))
    report = Report("n0.g0", 0, 1, 1, 0, {0: 3}, (begun,))
    assert report.progress(4) is begun
    assert report.progress(5) == StepProgress(5)
