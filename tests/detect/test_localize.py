import numpy as np
import pytest

from detect.small_job import PROFILE, small_plan
from holdfast.detect.localize import FACTORS, Moment, find_suspects
from holdfast.detect.pace import PairTimes
from holdfast.detect.predict import Predictor

PREDICTOR = Predictor(small_plan(), PROFILE)
SHAPE = PREDICTOR.shapes[0]
FACTOR = float(FACTORS[6])


def moments(lane=None, link=None, count=8, with_ends=False):
    """Steps of uneven micro-batches in which a lane or a link is slow."""
    rng = np.random.default_rng(5)
    made = []
    for _ in range(count):
        durations = rng.uniform(0.5, 3.0, SHAPE.ops.shape)
        own = PREDICTOR.work.lane[SHAPE.ops]
        real = np.where(own == lane, durations * FACTOR, durations)
        slowed = np.ones(SHAPE.ops.shape)
        if link is not None:
            slowed[:, link] = FACTORS[-3]
        links = PairTimes(SHAPE.links.occupancy * slowed, SHAPE.links.latency * slowed)
        ends = np.zeros(len(PREDICTOR.layout.lanes))
        ends[SHAPE.lanes] = SHAPE.ends(real, links)[SHAPE.last]
        total = float(ends.max()) + PREDICTOR.tail
        made.append(Moment((durations,), total, ends if with_ends else None))
    return made


@pytest.mark.parametrize("with_ends", [False, True])
@pytest.mark.parametrize("lane", [0, 3, 6])
def test_the_slow_lane_is_found(lane, with_ends):
    best = find_suspects(PREDICTOR, moments(lane, with_ends=with_ends), 0.01, paths=False)[0]
    assert best.lanes == (lane,)
    assert best.factor == pytest.approx(FACTOR)
    assert best.misfit < 0.01


def test_the_slow_link_is_found():
    best = find_suspects(PREDICTOR, moments(link=2, with_ends=True), 0.01, lanes=False)[0]
    assert best.lanes == (4, 5)


def test_probabilities_add_up_and_fall():
    suspects = find_suspects(PREDICTOR, moments(2, count=2), 0.05)
    found = [suspect.probability for suspect in suspects]
    assert found == sorted(found, reverse=True)
    assert sum(found) <= 1.0 + 1e-9


def test_nothing_may_be_suspected():
    assert find_suspects(PREDICTOR, moments(2), 0.01, lanes=False, paths=False) == []
