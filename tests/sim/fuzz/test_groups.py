from holdfast.control.order import FullPlan, Order, Share
from holdfast.control.report import Member
from holdfast.sim.fuzz.groups import SymbolicGroups

PAIR, THREE = ("a", "b"), ("a", "b", "c")


def order(number, kind="start", **fields):
    return Order(number=number, kind=kind, plan=FullPlan(""), incarnations={}, **fields)


def test_what_a_recovery_names_lives_on_and_all_else_is_made():
    groups = SymbolicGroups(Member("a", 1))
    groups.enter(order(1), [PAIR, THREE])
    groups.step_done()
    pair, three = groups.names[PAIR], groups.names[THREE]
    groups.enter(order(4, "recover", share=Share(step=1, base=1, living=(pair,))), [PAIR, THREE])
    assert groups.names[PAIR] == pair
    assert groups.names[THREE] != three
    told = {}
    while len(told) < 2:  # any may be found broken off
        told |= groups.stop()
    assert {name: level.counts for name, level in told.items()} == {
        pair: (1,),
        groups.names[THREE]: (0,),
    }


def test_over_a_change_all_that_are_needed_live_on():
    groups = SymbolicGroups(Member("a", 1))
    groups.enter(order(1), [PAIR])
    before = groups.names[PAIR]
    groups.enter(order(2, "change"), [PAIR, THREE])
    assert groups.names[PAIR] == before
    groups.enter(order(3), [PAIR])
    assert groups.names[PAIR] != before
