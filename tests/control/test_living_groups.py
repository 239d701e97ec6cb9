import pytest

from holdfast.control.living_groups import living_groups
from holdfast.control.report import GroupLevel, Member, WorkerReport


def report(name, **groups):
    return WorkerReport(member=Member(name, 1), round=3, epoch=1, version=5, base=1, groups=groups)


PAIR = GroupLevel(2, (7, 0, 0))


def test_a_group_at_rest_with_all_its_members_lives_on():
    found = living_groups([report("a", x=PAIR, y=PAIR), report("b", x=PAIR), report("c", y=PAIR)])
    assert found == {"x", "y"}


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"y": PAIR},
        {"x": GroupLevel(2, (8, 0, 0))},
        {"x": GroupLevel(2, (7, 1, 0))},
    ],
)
def test_one_that_a_member_has_not_or_has_got_further_in_does_not(others):
    assert "x" not in living_groups([report("a", x=PAIR), report("b", **others)])


def test_messages_are_counted_by_their_sender():
    """Two that have each sent what the other has not received have done the same number."""
    assert not living_groups(
        [report("a", x=GroupLevel(2, (0, 3, 2))), report("b", x=GroupLevel(2, (0, 2, 3)))]
    )
