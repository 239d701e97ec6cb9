from holdfast.sim.fuzz.groups import SymbolicGroups
from holdfast.sim.fuzz.promises.same_groups import SameGroups
from support.fuzz_worlds import broken_promise, make


def test_a_healthy_run_keeps_it():
    assert broken_promise(make(SameGroups()), 5) == ""


def test_a_group_that_one_made_anew_is_seen(monkeypatch):
    enter = SymbolicGroups.enter

    def alone(groups, order, needed):
        enter(groups, order, needed)
        groups.names = {
            members: f"{name} of {id(groups)}" for members, name in groups.names.items()
        }

    monkeypatch.setattr(SymbolicGroups, "enter", alone)
    assert broken_promise(make(SameGroups()), 5) == "P5"
