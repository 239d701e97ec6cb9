import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detect.small_job import law, random_workloads
from holdfast.detect.facts import Workload
from holdfast.detect.workload import WorkloadModel, features_of
from holdfast.errors import InternalError


def samples(seed: int, count: int, noise: float = 0.0):
    rng = np.random.default_rng(seed)
    works = random_workloads(rng, count)
    times = np.array([law("B", work) for work in works])
    return features_of(works, count), times * (1 + noise * rng.standard_normal(count))


def fitted(features, times) -> WorkloadModel:
    model = WorkloadModel(1)
    model.keep(np.zeros(len(times), dtype=np.int64), features, times)
    model.fit()
    return model


def errors(model: WorkloadModel, seed: int = 99):
    features, times = samples(seed, 50)
    return np.abs(model.predict(np.zeros(50, dtype=np.int64), features) / times - 1)


@pytest.mark.slow
@given(seed=st.integers(0, 1000))
def test_an_exact_law_is_found(seed):
    assert errors(fitted(*samples(seed, 40))).max() < 1e-3


def test_a_quarter_of_slow_samples_does_not_bend_the_fit():
    features, times = samples(1, 80, noise=0.01)
    times[::4] *= 2.5
    assert errors(fitted(features, times)).mean() < 0.01


def test_without_workloads_all_micro_batches_are_alike():
    features = features_of((), 20)
    model = fitted(features, np.full(20, 3.0))
    assert model.predict(np.array([0]), features[:1]) == pytest.approx([3.0], rel=1e-4)


def test_sums_of_micro_batches_follow_the_model_of_one():
    model = fitted(*samples(2, 40))
    features, times = samples(3, 8)
    total = model.predict(np.array([0]), features.sum(axis=0, keepdims=True))
    assert total == pytest.approx([times.sum()], rel=1e-3)
    assert model.table(features).sum() == pytest.approx(times.sum(), rel=1e-3)


def test_learning_follows_drift_and_hardly_notices_an_outlier():
    model = fitted(*samples(4, 60, noise=0.01))
    classes = np.zeros(4, dtype=np.int64)
    for seed in range(100, 130):
        features, times = samples(seed, 4, noise=0.01)
        model.learn(classes, features, times * (50.0 if seed == 110 else 1.0))
    assert errors(model).mean() < 0.01
    for seed in range(200, 1700):
        features, times = samples(seed, 4, noise=0.01)
        model.learn(classes, features, times * 1.05)
    features, times = samples(99, 50)
    assert np.mean(model.predict(np.zeros(50, dtype=np.int64), features) / times) == pytest.approx(
        1.05, abs=0.01
    )


def test_noise_is_measured():
    assert fitted(*samples(5, 200, noise=0.03)).noise[0] == pytest.approx(0.03, rel=0.35)


def test_a_class_without_samples_does_not_forget_the_others():
    model = WorkloadModel(2)
    features, times = samples(6, 40)
    model.keep(np.arange(40) % 2, features, times)
    model.fit()
    before = model.information[1].copy()
    model.learn(np.array([0]), features[:1], times[:1])
    assert (model.information[1] == before).all()


def test_features_are_in_the_order_of_the_law():
    assert features_of([Workload(5, 7, 2)], 1).tolist() == [[5.0, 7.0, 2.0]]


def test_an_empty_fit_is_our_mistake():
    with pytest.raises(InternalError):
        WorkloadModel(1).fit()
