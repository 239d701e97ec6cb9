"""Jobs on several hosts, as namespaces of this machine (`make hosts`)."""

import pytest

from support.hosts import why_not


def pytest_collection_modifyitems(items) -> None:
    mine = [item for item in items if item.get_closest_marker("hosts")]
    if mine and (reason := why_not()):
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))
