"""Where the time went."""

import pytest

from holdfast.errors import InternalError
from holdfast.observe.goodput import BUCKET_OF, BUCKETS, GoodputAccount


def test_every_cause_has_its_bucket():
    assert set(BUCKET_OF.values()) == set(BUCKETS)


def test_a_minute_at_eleven_twelfths():
    ledger = GoodputAccount()
    assert ledger.train(60_000, {"missing devices": 1 / 12}) == pytest.approx(55_000)
    ledger.lose("detection", 30_000)
    ledger.lose("planning", 10_000)
    budget = ledger.budget()
    assert budget.goodput == pytest.approx(0.55)
    assert budget.buckets() == {
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": pytest.approx(0.4),
        "ELASTIC_SLICE_DOWN": pytest.approx(0.05),
    }


def test_lost_work_was_productive_before():
    ledger = GoodputAccount()
    ledger.train(1_000, {})
    ledger.waste(400.0)
    budget = ledger.budget()
    assert (budget.productive_ms, budget.lost_ms) == (600.0, {"lost work": 400.0})
    ledger.waste(9_999.0)
    assert ledger.budget().productive_ms == 0.0


def test_an_empty_budget_has_no_goodput():
    budget = GoodputAccount().budget()
    assert (budget.goodput, budget.share("saving"), budget.buckets()) == (0.0, 0.0, {})


def test_unknown_causes_are_refused():
    with pytest.raises(InternalError, match="'boredom' is not among"):
        GoodputAccount().lose("boredom", 5)


def test_time_that_does_not_add_up_is_noticed():
    ledger = GoodputAccount()
    ledger.train(1_000, {"saving": 0.7, "redundancy": 0.7})
    with pytest.raises(InternalError, match=r"1000\.000 ms went by"):
        ledger.budget()
