import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.faults.kinds import FAULT_KINDS, INSIDE, OF_NODES, SIGNALS, Fault


def test_every_kind_has_its_place():
    assert sorted(FAULT_KINDS) == sorted((*SIGNALS, *INSIDE, *OF_NODES, "COORDINATOR_LOSS"))


def test_who_has_to_do_it():
    assert Fault(kind="SEGFAULT").is_inside
    assert not Fault(kind="SIGKILL", at_step=3).is_inside
    assert Fault(kind="SIGKILL", at_step=3, phase="agree").is_inside


def test_contradictions():
    with pytest.raises(HoldfastError, match="at_step = 3 and mean_time_s = 5"):
        Fault(kind="SIGKILL", at_step=3, mean_time_s=5.0)
    with pytest.raises(HoldfastError, match="phase = 'agree' needs at_step"):
        Fault(kind="SIGKILL", phase="agree")


@pytest.mark.parametrize("name", ["n0", "n0>", "n0>n0", "n0.g1>n1", "r0.s0>r0.s1", "random"])
def test_names_that_are_no_links(name):
    with pytest.raises(HoldfastError, match="is no link"):
        Fault(kind="SLOW_LINK", target=name)


def test_a_slow_link_is_told_to_all():
    fault = Fault(kind="SLOW_LINK", target="n0.g1>n1.g0", steps=3)
    assert fault.hits_all
    assert fault.is_inside
    with pytest.raises(HoldfastError, match="steps = 3 is for SLOW and SLOW_LINK, not SIGKILL"):
        Fault(kind="SIGKILL", steps=3)


def test_a_cut_host_is_cut_for_a_while():
    assert Fault(kind="HOST_CUT", duration_s=5).duration_s == 5
    with pytest.raises(HoldfastError, match="HOST_CUT with duration_s = 0: a host"):
        Fault(kind="HOST_CUT")


def test_a_slow_host_has_a_rate():
    assert Fault(kind="HOST_SLOW", duration_s=5, rate_mbit=10).rate_mbit == 10
    with pytest.raises(HoldfastError, match="HOST_SLOW with rate_mbit = 0: HOST_SLOW needs a rate"):
        Fault(kind="HOST_SLOW", duration_s=5)
    with pytest.raises(HoldfastError, match="SIGKILL with rate_mbit = 10"):
        Fault(kind="SIGKILL", rate_mbit=10)


def test_an_unknown_kind():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "SIGBLAH"}, Fault)
