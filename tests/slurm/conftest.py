"""Jobs under a real Slurm (`make slurm`)."""

import pytest

from support.slurm import why_not


def pytest_collection_modifyitems(items) -> None:
    mine = [item for item in items if item.get_closest_marker("slurm")]
    if mine and (reason := why_not()):
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))
