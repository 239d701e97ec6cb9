import msgspec
import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.faults.kinds import FAULT_KINDS, INSIDE, LOSSES, SIGNALS, Fault


def test_every_kind_has_its_place():
    assert sorted(FAULT_KINDS) == sorted((*SIGNALS, *INSIDE, *LOSSES))


def test_who_has_to_do_it():
    assert Fault(kind="SEGFAULT").is_inside
    assert not Fault(kind="SIGKILL", at_step=3).is_inside
    assert Fault(kind="SIGKILL", at_step=3, phase="agree").is_inside


def test_contradictions():
    with pytest.raises(HoldfastError, match="at_step = 3 and mean_time_s = 5"):
        Fault(kind="SIGKILL", at_step=3, mean_time_s=5.0)
    with pytest.raises(HoldfastError, match="phase = 'agree' needs at_step"):
        Fault(kind="SIGKILL", phase="agree")


def test_an_unknown_kind():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "SIGBLAH"}, Fault)
