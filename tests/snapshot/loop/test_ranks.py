"""A rank that is alone agrees with itself."""

import socket

from holdfast.snapshot.loop.ranks import Ranks


def test_alone():
    ranks = Ranks()
    assert (ranks.rank, ranks.size, ranks.is_joint, ranks.is_leader) == (0, 1, False, True)
    assert ranks.nodes == [socket.gethostname()]
    assert ranks.gather("x") == ["x"]
    assert (ranks.least(3), ranks.most(3)) == (3, 3)
    assert ranks.all(True)
    assert not ranks.all(False)
    assert Ranks("here").other().nodes == ["here"]
