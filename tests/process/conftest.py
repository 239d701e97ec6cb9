"""What the tests of whole jobs share."""

import pytest


@pytest.fixture(scope="session")
def undisturbed(fork_server, tmp_path_factory):
    """Runs to compare with, by the number of their steps."""
    from support.chaos import Undisturbed

    return Undisturbed(fork_server, tmp_path_factory.mktemp("undisturbed"))
