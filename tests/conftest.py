"""Settings for all tests."""

import os

import pytest
from hypothesis import settings

pytest_plugins = ["support.order", "support.retry"]

# Before torch is imported: on few cores its threads fight each other and the other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shared machines are slow now and then, so there is no deadline per example; a failing example is
# printed as a blob that repeats it anywhere.
# The same examples every time, so that a change is judged by what it changes; others on request.
settings.register_profile("holdfast", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "holdfast"))


@pytest.fixture(scope="session")
def cluster():
    """Warm worker processes for all tests of this process; at the end none is left."""
    from support.cluster import Cluster, leftover_children, stop_fork_server

    others = leftover_children()  # of fixtures that began earlier and end later
    with Cluster() as pool:
        yield pool
    stop_fork_server()
    assert [child for child in leftover_children() if child not in others] == []


@pytest.fixture(scope="session")
def fork_server():
    """A warm fork server that jobs may borrow; at the end nothing is left of it."""
    import psutil

    from holdfast.runtime.launch.fork_server import ForkServer
    from holdfast.runtime.launch.store import bind, serve_store

    # The first store of a process leaves a pipe behind, for signals; none of the later ones does.
    serve_store(bind("127.0.0.1", 0))
    with ForkServer() as warm:
        warm.wait_until_warm()
        warm.light.wait_until_warm()
        yield warm
    assert not psutil.pid_exists(warm.pid)
    assert not psutil.pid_exists(warm.light.pid)
