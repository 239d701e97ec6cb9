"""A call beside the training: its result, or its error."""

import pytest

from holdfast.snapshot.copying.background import in_background


def test_the_result_and_the_error_come_back():
    assert in_background("one", lambda: 42).result(30) == 42
    with pytest.raises(ZeroDivisionError):
        in_background("other", lambda: 1 // 0).result(30)
