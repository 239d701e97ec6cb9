import pytest

from holdfast.sim.fuzz.promises.promise import Checker, Violation
from support.fuzz_worlds import at_version, make


class Witness(Checker):
    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def applied(self, world, worker, outcome) -> None:
        self.seen["applied"] = self.seen.get("applied", 0) + 1

    def entered(self, world, worker, order) -> None:
        self.seen["entered"] = self.seen.get("entered", 0) + 1

    def sending(self, world, message) -> None:
        self.seen["sending"] = self.seen.get("sending", 0) + 1


def test_a_checker_sees_what_happens():
    witness = Witness()
    at_version(make(witness), 1)
    assert witness.seen["entered"] == 4
    assert witness.seen["applied"] >= 4
    assert witness.seen["sending"] >= 4


def test_a_violation_names_its_promise():
    with pytest.raises(Violation, match="P9: why") as caught:
        make().require("P9", False, "why")
    assert caught.value.promise == "P9"
