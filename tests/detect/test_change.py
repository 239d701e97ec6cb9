import numpy as np
import pytest

from holdfast.detect.change import TESTS, Tuning

NOISE = 0.01


def feed(test, values):
    """Steps at which series 0 is seen above and below."""
    above, below = [], []
    for step, value in enumerate(values, start=1):
        change = test.update(np.array([value]), np.array([NOISE]))
        above += [step] * bool(change.above[0])
        below += [step] * bool(change.below[0])
    return above, below


@pytest.fixture(params=sorted(TESTS))
def test(request):
    return TESTS[request.param](1, Tuning())


def noise(count: int, seed: int = 0):
    return np.random.default_rng(seed).normal(0, NOISE, count)


def test_noise_is_no_change(test):
    assert feed(test, noise(3000)) == ([], [])


def test_a_shift_of_ten_per_cent_is_seen_within_five_steps(test):
    feed(test, noise(100))
    above, below = feed(test, np.log(1.1) + noise(20, 1))
    assert above[0] <= 5
    assert below == []


def test_a_fall_is_seen_below(test):
    above, below = feed(test, -np.log(1.2) + noise(20, 2))
    assert above == []
    assert below[0] <= 5


def test_one_outlier_is_no_change_however_large(test):
    values = noise(400, 3)
    values[::20] += 100.0
    assert feed(test, values) == ([], [])


def test_what_is_cleared_starts_anew(test):
    feed(test, [0.09])
    test.clear(np.array([True]))
    fresh = type(test)(1, Tuning())
    again = [0.09, 0.0, 0.09, 0.09, 0.09]
    assert feed(test, again) == feed(fresh, again)


def test_the_threshold_grows_with_the_noise():
    loud, quiet = (TESTS["page-hinkley"](1, Tuning()) for _ in range(2))
    for _ in range(4):
        strong = loud.update(np.array([0.1]), np.array([0.05]))
        plain = quiet.update(np.array([0.1]), np.array([0.01]))
    assert plain.above[0]
    assert not strong.above[0]
