"""The rule for tests of real processes: a second try, told; too many of them fail the run."""

import subprocess
import sys

import pytest

from support.retry import MAX_FLAKY

pytestmark = pytest.mark.slow

TESTS = """
import pathlib
import pytest

def fails_first(name):
    mark = pathlib.Path(__file__).with_name(name)
    if not mark.exists():
        mark.touch()
        raise RuntimeError(f"{name} was late")

@pytest.fixture(scope="module")
def shared():
    fails_first("shared")

@pytest.mark.process
@pytest.mark.parametrize("number", range(NUM_FLAKY))
def test_flaky(number):
    fails_first(f"test{number}")

@pytest.mark.process
def test_shared(shared):
    pass

def test_without_processes():
    if WRONG:
        fails_first("pure")

@pytest.mark.process
def test_broken():
    assert not WRONG
"""


@pytest.fixture
def run(pytestconfig, tmp_path):
    def run(*options, num_flaky=1, is_wrong=False):
        text = TESTS.replace("NUM_FLAKY", str(num_flaky)).replace("WRONG", str(is_wrong))
        (tmp_path / "test_it.py").write_text(text)
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["support.order", "support.retry"]')
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        command += ["--rootdir", tmp_path, "-c", "/dev/null", "-o", "markers=process", tmp_path]
        path = str(pytestconfig.rootpath / "tests")
        done = subprocess.run(
            command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize(
    "options",
    [(), ("-n", "3", "--dist", "worksteal")],
    ids=["alone", "in three processes, as in make test"],
)
def test_what_passes_at_the_second_try_is_told(run, options):
    code, out = run("--retry-processes", *options)
    assert code == 0, out
    assert "4 passed" in out
    assert "FLAKY test_it.py::test_flaky[0]: RuntimeError: test0 was late" in out
    assert "FLAKY test_it.py::test_shared: RuntimeError: shared was late" in out


def test_too_many_fail_the_run(run):
    code, out = run("--retry-processes", num_flaky=MAX_FLAKY)
    assert code == 1, out
    assert f"{MAX_FLAKY + 1} flaky tests, at most {MAX_FLAKY} may be" in out


def test_what_fails_twice_or_has_no_processes_fails(run):
    code, out = run("--retry-processes", is_wrong=True)
    assert code == 1
    assert "2 failed" in out
    assert "FLAKY test_it.py::test_broken" not in out
    assert "FAILED TWICE test_it.py::test_broken: at first assert not True" in out


def test_without_being_asked_nothing_is_tried_twice(run):
    code, out = run()
    assert code == 1
    assert "FLAKY" not in out
