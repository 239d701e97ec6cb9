from holdfast.control.report import Member


def test_a_member_is_named_with_its_incarnation() -> None:
    assert str(Member("n1.g0", 3)) == "n1.g0#3"
    assert Member("n1.g0", 2) < Member("n1.g0", 3)
