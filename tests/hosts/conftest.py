"""Jobs on several hosts, as namespaces of this machine (`make hosts`)."""

import pytest

from support.host_jobs import Outcome, run_plain
from support.hosts import why_not


def pytest_collection_modifyitems(items) -> None:
    mine = [item for item in items if item.get_closest_marker("hosts")]
    if mine and (reason := why_not()):
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Outcome:
    """The same job on one machine."""
    return run_plain(tmp_path_factory.mktemp("plain"))
