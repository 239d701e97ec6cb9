"""Where the time went."""

import pytest

from holdfast.errors import InternalError
from holdfast.observe.goodput import BUCKET_OF, BUCKETS, GoodputAccount
from holdfast.observe.report import PRODUCTIVE, time_by_cause
from holdfast.observe.simulation_charts import CAUSE_COLOURS
from holdfast.sim.cluster.compare import run_policies
from holdfast.sim.cluster.events import HardwareEvent
from holdfast.sim.cluster.job import make_job
from holdfast.sim.cluster.run import RunSettings
from support.made_runs import disturbed_run


def test_every_cause_has_its_bucket():
    assert set(BUCKET_OF.values()) == set(BUCKETS)


def test_a_minute_at_eleven_twelfths():
    account = GoodputAccount()
    assert account.train(60_000, {"missing devices": 1 / 12}) == pytest.approx(55_000)
    account.lose("detection", 30_000)
    account.lose("planning", 10_000)
    budget = account.budget()
    assert budget.goodput == pytest.approx(0.55)
    assert budget.buckets() == {
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": pytest.approx(0.4),
        "ELASTIC_SLICE_DOWN": pytest.approx(0.05),
    }


def test_lost_work_was_productive_before():
    account = GoodputAccount()
    account.train(1_000, {})
    account.waste(400.0)
    budget = account.budget()
    assert (budget.productive_ms, budget.lost_ms) == (600.0, {"lost work": 400.0})
    account.waste(9_999.0)
    assert account.budget().productive_ms == 0.0


def test_an_empty_budget_has_no_goodput():
    budget = GoodputAccount().budget()
    assert (budget.goodput, budget.share("saving"), budget.buckets()) == (0.0, 0.0, {})


def test_unknown_causes_are_refused():
    with pytest.raises(InternalError, match="'boredom' is not among"):
        GoodputAccount().lose("boredom", 5)


def test_time_that_does_not_add_up_is_noticed():
    account = GoodputAccount()
    account.train(1_000, {"saving": 0.7, "redundancy": 0.7})
    with pytest.raises(InternalError, match=r"1000\.000 ms went by"):
        account.budget()


def test_a_run_and_the_simulator_use_the_same_causes():
    """Both add time up in one account, and what is shown of either has a colour of its cause."""
    assert set(time_by_cause(disturbed_run().end().model().goodput())) <= {*BUCKET_OF, PRODUCTIVE}
    job = make_job("llama-7b", 64)
    events = [HardwareEvent(time_ms=3_600_000, kind="failed", devices=(3,))]
    settings = RunSettings(length_ms=7_200_000)
    for _, _, result in run_policies(job, events, settings, ["checkpoint", "holdfast"]):
        assert set(result.budget.lost_ms) <= set(BUCKET_OF)
    assert set(CAUSE_COLOURS) >= {*BUCKET_OF, PRODUCTIVE}
