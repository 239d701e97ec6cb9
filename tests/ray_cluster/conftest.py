"""Jobs on a real Ray cluster (`make ray`)."""

import importlib.util

import pytest


def pytest_collection_modifyitems(items) -> None:
    mine = [item for item in items if item.get_closest_marker("ray")]
    if mine and importlib.util.find_spec("ray") is None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="there is no ray here: make ray"))
