import io

import pytest
from rich.console import Console

from holdfast.observe.fitting_table import LEAST_WIDTH, FittingTable

ROWS = [("1.5 s", "a worker that had a long name"), ("2.5 s", "a node")]


@pytest.mark.parametrize("width", [30, LEAST_WIDTH])
def test_it_fits(width):
    console = Console(file=io.StringIO(), width=width)
    table = FittingTable(("at", "what"), ROWS, title="incidents", numbers=["at"], wide=["what"])
    console.print(table)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for word in ("incidents", "1.5 s", "2.5 s", "long name", "a node"):
        assert word in text
    assert ("- at: 1.5 s" in text) == (width < LEAST_WIDTH)
