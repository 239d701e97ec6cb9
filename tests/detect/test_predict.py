import numpy as np
import pytest

from detect.small_job import PROFILE, small_plan
from holdfast.detect.predict import PathFactors, Predictor, channel_lanes
from holdfast.detect.workload import WorkloadModel, features_of
from holdfast.errors import InternalError
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import evaluate
from support.small_plans import even_chain


def constant_model(predictor: Predictor, times: dict[str, float]) -> WorkloadModel:
    model = WorkloadModel(predictor.work.num_models)
    kinds = predictor.work.kinds
    classes = np.arange(predictor.work.num_models)
    values = np.array([times[kinds[c % len(kinds)]] for c in classes])
    model.keep(classes, features_of((), len(classes)), values)
    model.fit()
    return model


def step_time(predictor, model, factor=None, paths=None) -> float:
    count = predictor.layout.plan.num_micro_batches
    lanes = len(predictor.layout.lanes)
    ends = predictor.lane_ends(
        model,
        features_of((), count),
        np.ones(lanes) if factor is None else factor,
        paths or PathFactors(),
    )
    return float(ends.max() + predictor.tail)


def test_ordinary_work_takes_what_the_timeline_says():
    predictor = Predictor(small_plan(), PROFILE)
    model = constant_model(predictor, {"F": 1.0, "B": 2.0})
    expected = evaluate(small_plan(), PROFILE).iteration_time
    assert step_time(predictor, model) == pytest.approx(expected, rel=1e-4)


def test_a_slow_lane_is_predicted_like_a_slow_worker_of_the_profile():
    plan = small_plan()
    predictor = Predictor(plan, PROFILE)
    model = constant_model(predictor, {"F": 1.0, "B": 2.0})
    factor = np.ones(len(predictor.layout.lanes))
    factor[3] = 1.5
    slow = Profile(
        worker=PROFILE.worker,
        within_node=PROFILE.within_node,
        between_nodes=PROFILE.between_nodes,
        slow={predictor.layout.lanes[3][0]: 1.5},
    )
    expected = evaluate(plan, slow).iteration_time
    assert step_time(predictor, model, factor) == pytest.approx(expected, rel=1e-4)


def test_a_slow_path_lengthens_the_step():
    predictor = Predictor(small_plan(), PROFILE)
    model = constant_model(predictor, {"F": 1.0, "B": 2.0})
    pair = channel_lanes(predictor.program)[0]
    slow = step_time(predictor, model, paths=PathFactors({pair: 50.0}))
    assert slow > step_time(predictor, model) * 1.1


def test_lanes_with_the_same_units_share_a_class():
    predictor = Predictor(small_plan(), PROFILE)
    assert predictor.work.lane_class.tolist() == [0, 1] * 4
    assert predictor.work.num_models == 4


def test_a_lane_with_several_stages_splits_its_time_between_them():
    plan = even_chain(2, 4, kind="interleaved", virtual=2)
    profile = Profile(worker=UnitCost(2.0, 2.0, 2.0))
    predictor = Predictor(plan, profile)
    assert predictor.work.weight == pytest.approx(np.full(len(predictor.work.weight), 0.5))
    model = constant_model(predictor, {"F": 2.0, "B": 4.0})
    expected = evaluate(plan, profile).iteration_time
    assert step_time(predictor, model) == pytest.approx(expected, rel=1e-4)


def test_a_prediction_needs_a_fitted_model():
    predictor = Predictor(small_plan(), PROFILE)
    with pytest.raises(InternalError):
        step_time(predictor, WorkloadModel(predictor.work.num_models))
