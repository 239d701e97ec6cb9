"""Workers learn what things take when they can use it, and not more often."""

from holdfast.control.snapshots.messages import PlaceCopies
from holdfast.control.snapshots.placing import LEAST_STEPS, CopyPlacing, differs
from holdfast.plan.profile import Profile, UnitCost


def make_profile(**forward):
    return Profile(unit={name: UnitCost(cost, 1.0, 1.0) for name, cost in forward.items()})


PROFILE = make_profile(a=1.0, b=1.0)
OTHER = make_profile(a=1.0, b=5.0)


def test_once_there_is_a_profile():
    placing = CopyPlacing()
    assert placing.stepped(1, 0, Profile()) is None
    assert placing.stepped(1, 1, PROFILE) == PlaceCopies(profile=PROFILE)
    assert placing.stepped(1, 2, PROFILE) is None


def test_again_in_every_epoch():
    placing = CopyPlacing()
    placing.stepped(1, 1, PROFILE)
    assert placing.stepped(2, 2, PROFILE) == PlaceCopies(profile=PROFILE)


def test_again_when_it_does_not_fit_any_more_but_not_at_once():
    placing = CopyPlacing()
    placing.stepped(1, 1, PROFILE)
    assert placing.stepped(1, LEAST_STEPS, OTHER) is None
    assert placing.stepped(1, LEAST_STEPS + 1, PROFILE) is None
    assert placing.stepped(1, LEAST_STEPS + 1, OTHER) == PlaceCopies(profile=OTHER)


def test_small_changes_move_no_bubble():
    assert not differs(PROFILE, make_profile(a=1.2, b=0.9))
    assert differs(PROFILE, make_profile(a=1.0, b=3.0))
    assert differs(PROFILE, make_profile(a=1.0))
    assert differs(make_profile(a=1.0, b=9.0), make_profile(a=9.0, b=1.0)), "the sum is the same"
