"""Traces of spot instances."""

import pytest

from holdfast.errors import HoldfastError
from holdfast.sim.cluster.traces import parse_trace

TEXT = """\
500,add,node1
500,add,node2
600,remove,node1
700,add,node3
800,add,node4
900,remove,node3
"""


def test_places_are_taken_again():
    trace = parse_trace(TEXT)
    assert (trace.num_places, trace.num_first, trace.end_ms) == (3, 2, 400)
    assert trace.changes == ((100, False, 0), (200, True, 0), (300, True, 2), (400, False, 0))


def test_places_filled_later_are_absent_first():
    events = parse_trace(TEXT).events(devices_per_node=2)
    assert [(e.time_ms, e.kind, e.devices) for e in events] == [
        (0, "failed", (4, 5)),
        (100, "failed", (0, 1)),
        (200, "returned", (0, 1)),
        (300, "returned", (4, 5)),
        (400, "failed", (0, 1)),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 lines"),
        ("time,event,node", "is not `milliseconds"),
        ("5,add", "t.csv:1"),
        ("5,add,a\n4,add,b", "4 ms comes after 5 ms"),
        ("5,add,a\n6,add,a", "already there"),
        ("5,add,a\n6,remove,b", "not there"),
        ("5,remove,a", "begins with an added node"),
    ],
)
def test_bad_traces_are_refused(text, words):
    with pytest.raises(HoldfastError, match=words):
        parse_trace(text, "t.csv")
