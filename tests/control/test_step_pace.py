from holdfast.control.step_pace import NUM_RECENT, StepPace


def paced(*seconds: float, epoch: int = 1, pace: StepPace | None = None) -> StepPace:
    pace = pace or StepPace()
    for second in seconds:
        pace.add(epoch, second)
    return pace


def test_the_first_step_counts_only_until_others_are_there():
    assert paced(9.0).seconds == 9.0
    assert paced(9.0, 1.0, 1.1, 0.9).seconds == 1.0


def test_the_pace_of_the_epoch_before_is_known_until_there_is_another():
    pace = paced(9.0, *[1.0] * 5)
    paced(5.0, 2.0, pace=pace, epoch=2)
    assert (pace.epoch, pace.seconds) == (1, 1.0)
    paced(2.0, 2.0, pace=pace, epoch=2)
    assert (pace.epoch, pace.seconds) == (2, 2.0)


def test_drift_needs_a_whole_window_and_is_over_once_it_is_known():
    pace = paced(*[1.0] * (NUM_RECENT + 1))
    paced(2.0, 2.0, pace=pace)
    assert not pace.has_drifted
    paced(*[2.0] * NUM_RECENT, pace=pace)
    assert pace.has_drifted
    pace.thought_about()
    assert not pace.has_drifted


def test_noise_is_no_drift():
    pace = paced(*[1.0, 1.15, 0.9] * NUM_RECENT)
    assert not pace.has_drifted


def test_a_little_slower_counts_where_the_reason_is_known():
    pace = paced(*[1.0] * (NUM_RECENT + 1))
    paced(*[1.1] * NUM_RECENT, pace=pace)
    assert pace.is_slower
    assert not pace.has_drifted
    assert not paced(*[0.8] * NUM_RECENT, pace=pace).is_slower


def test_what_was_thought_of_a_pace_does_not_make_it_the_best():
    pace = paced(*[1.0] * (NUM_RECENT + 1))
    assert not pace.was_better
    paced(*[1.1] * NUM_RECENT, pace=pace)
    pace.thought_about()
    assert pace.was_better
    assert not pace.is_slower
    paced(*[1.02] * NUM_RECENT, pace=pace)
    assert not pace.was_better
    paced(*[2.0] * (NUM_RECENT + 1), pace=pace, epoch=2)
    assert not pace.was_better, "another plan"


def test_steps_that_take_another_time_than_was_predicted_are_drift():
    for predicted_s, has_drifted in ((1.0, False), (0.9, False), (0.7, True), (1.5, True)):
        pace = paced(*[2.0] * (NUM_RECENT + 1))
        pace.entered(2, predicted_s)
        paced(*[1.0] * NUM_RECENT, pace=pace, epoch=2)
        assert not pace.has_drifted, "not over a whole window yet"
        paced(1.0, pace=pace, epoch=2)
        assert pace.has_drifted == has_drifted
        assert not pace.is_slower, "that is said of what was measured"
        pace.thought_about()
        assert not pace.has_drifted
