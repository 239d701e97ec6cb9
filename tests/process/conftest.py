"""What the tests of whole jobs share."""

import pytest


@pytest.fixture(scope="session")
def undisturbed(fork_server, tmp_path_factory):
    """Runs to compare with, by the number of their steps."""
    from support.chaos import Undisturbed

    return Undisturbed(fork_server, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(autouse=True)
def time_adds_up(request):
    """Every chaos run leaves directories in which the time adds up."""
    if request.node.get_closest_marker("chaos") is None:
        yield
        return
    from support.time_check import worst_time

    folder, capsys = map(request.getfixturevalue, ("tmp_path", "capsys"))
    yield
    off, num_runs = worst_time(folder)
    if num_runs:
        with capsys.disabled():
            print(f"\nthe time of {num_runs} runs adds up within {off:.3%}")
