from random import Random

from holdfast.sim.fuzz.clock import Clock
from holdfast.sim.fuzz.network import SimulatedConnection


def test_messages_arrive_in_order_whatever_their_delay():
    clock, seen = Clock(), []
    link = SimulatedConnection(clock, Random(1), 50)
    for number in range(20):
        link.send(0, seen.append, number)
    while clock.step():
        pass
    assert seen == list(range(20))


def test_what_is_under_way_is_lost_with_the_connection():
    clock, seen = Clock(), []
    link = SimulatedConnection(clock, Random(1), 50)
    link.send(0, seen.append, "lost")
    link.close()
    link.send(1, seen.append, "never sent")
    while clock.step():
        pass
    assert seen == []
