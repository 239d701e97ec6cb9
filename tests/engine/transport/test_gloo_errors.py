import pytest

from holdfast.engine.transport import gloo_errors
from holdfast.engine.transport.gloo_errors import check_gloo_errors, provoke
from holdfast.errors import HoldfastError

pytestmark = pytest.mark.process  # real connections


def test_this_torch_says_what_is_waited_for():
    check_gloo_errors()


@pytest.mark.parametrize("name", ["COLLECTIVE_TIMED_OUT", "MESSAGE_TIMED_OUT"])
def test_a_torch_that_says_something_else_is_refused(monkeypatch, name):
    monkeypatch.setattr(gloo_errors, name, "Zeit abgelaufen")
    with pytest.raises(HoldfastError, match=r"torch 2\..* is not supported: of a .* 'Zeit abg"):
        check_gloo_errors()


def test_only_torchs_own_errors_are_texts():
    def fail():
        raise RuntimeError("why")

    assert (provoke(fail), provoke(dict)) == ("why", "")
    with pytest.raises(ZeroDivisionError):
        provoke(lambda: 1 / 0)
