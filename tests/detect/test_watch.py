import numpy as np
import pytest

from holdfast.detect.watch import Watch


def watch_of(*classes: int) -> Watch:
    return Watch(np.array(classes, dtype=np.int64))


def feed(watch, count: int, seed: int = 0, **shifted: float):
    """Noise, plus what is given by member: `m2=0.1`."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        values = rng.normal(0, 0.01, len(watch.classes))
        for name, shift in shifted.items():
            values[int(name[1:])] += shift
        found += watch.update(values)
    return found


def test_noise_gives_no_shift():
    assert feed(watch_of(0, 0, 0, 0), 2000) == []


def test_a_slow_member_is_found_with_its_level():
    (shift,) = feed(watch_of(0, 0, 0, 0), 8, m2=0.2)
    assert shift.member == 2
    assert shift.new == pytest.approx(0.2, abs=0.02)
    assert shift.confidence > 0.99


def test_what_happens_to_all_is_no_fault_of_one():
    watch = watch_of(0, 0, 0, 0)
    assert feed(watch, 20, m0=0.3, m1=0.3, m2=0.3, m3=0.3) == []
    assert np.median(watch.common) == pytest.approx(0.3, abs=0.02)


def test_recovery_is_found():
    watch = watch_of(0, 0, 0, 0)
    feed(watch, 10, m1=0.2)
    (shift,) = feed(watch, 10, seed=1)
    assert (shift.member, shift.new) == (1, 0.0)
    assert shift.old == pytest.approx(0.2, abs=0.02)
    assert (watch.level == 0).all()


def test_getting_worse_is_news():
    watch = watch_of(0, 0, 0, 0)
    feed(watch, 10, m1=0.2)
    (shift,) = feed(watch, 10, seed=1, m1=0.5)
    assert shift.new == pytest.approx(0.5, abs=0.03)


def test_slow_from_the_first_step_is_slow_not_usual():
    assert [shift.member for shift in feed(watch_of(0, 0, 0, 0), 30, m3=0.1)] == [3]


def test_a_small_lasting_difference_becomes_usual():
    watch = watch_of(0, 0, 0, 0)
    assert feed(watch, 500, m3=0.02) == []
    assert watch.baseline[3] == pytest.approx(0.015, abs=0.008)


def test_small_classes_are_compared_with_every_worker():
    (shift,) = feed(watch_of(0, 1, 2, 3, 4), 8, m2=0.2)
    assert shift.member == 2


def test_two_slow_ones_of_three_are_not_the_measure():
    """Others say that the work is what it was: those that moved are slow, also if they are most."""
    watch = watch_of(0, 0, 0, 1, 1, 1)
    found = feed(watch, 12, m0=1.1, m1=1.1)
    assert [shift.member for shift in found] == [0, 1]
    back = feed(watch, 12, seed=1)
    assert sorted((shift.member, shift.new) for shift in back) == [(0, 0.0), (1, 0.0)]
    assert feed(watch, 500, seed=2) == []


def test_a_class_whose_work_has_changed_has_no_slow_member():
    assert feed(watch_of(0, 0, 0, 1, 1, 1, 1, 1), 30, m0=0.5, m1=0.5, m2=0.5) == []


def test_a_member_without_values_stays_as_it_is():
    watch = watch_of(0, 0, 0, 0)
    feed(watch, 10, m1=0.2)
    level = watch.level.copy()
    for _ in range(50):
        assert watch.update(np.full(4, np.nan)) == []
    assert (watch.level == level).all()


def test_no_worker_to_watch():
    assert watch_of().update(np.zeros(0)) == []
