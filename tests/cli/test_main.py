import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cyclopts import App

from holdfast import __version__
from holdfast.cli.main import build_app, main, normalise_flags
from holdfast.errors import HoldfastError, InternalError

HEAVY = ("numpy", "scipy", "torch", "pandas", "pyarrow")


@pytest.fixture(autouse=True)
def no_debugging(monkeypatch):
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)


def app_with(command: Callable[..., object]) -> App:
    """The real app with one more command, `try`."""
    app = build_app()
    app.command(command, name="try")
    return app


def error_line(capsys) -> str:
    """The one line on stderr; nothing on stdout, no traceback."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("holdfast: ")
    return err.strip()


def raising(error: BaseException) -> App:
    def command() -> None:
        raise error

    return app_with(command)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


def test_help_names_the_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "demo" in out
    assert "plan" in out


def test_no_command_shows_the_help(capsys):
    assert main([]) == 0
    assert "Usage: holdfast" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "suggestion"),
    [
        (["plna"], '"plan"'),
        (["--verson"], "--version"),
        (["demo", "--hepl"], "--help"),
        (["try", "--micro-batch", "4"], "--micro-batches"),
    ],
)
def test_a_typing_error_suggests_the_nearest_word(argv, suggestion, capsys):
    def command(*, micro_batches: int = 1) -> None:
        pass

    assert main(argv, app_with(command)) == 2
    line = error_line(capsys)
    assert line.startswith("holdfast: error: Unknown")
    assert f"Did you mean {suggestion}?" in line


def test_a_wrong_value_is_wrong_usage(capsys):
    def command(*, stages: int) -> None:
        pass

    assert main(["try", "--stages", "four"], app_with(command)) == 2
    line = error_line(capsys)
    assert "--stages" in line
    assert "four" in line


def test_a_missing_value_is_wrong_usage(capsys):
    def command(*, stages: int) -> None:
        pass

    assert main(["try"], app_with(command)) == 2
    assert "--stages" in error_line(capsys)


@pytest.mark.parametrize("code", [1, 93])
def test_a_mistake_of_the_user_is_one_line_and_its_own_code(code, capsys):
    error = HoldfastError("4 stages need 4 devices,\n  there are 3", exit_code=code)
    assert main(["try"], raising(error)) == code
    assert error_line(capsys) == "holdfast: error: 4 stages need 4 devices, there are 3"


def test_a_missing_file_is_named(capsys):
    def command() -> None:
        Path("no-such-job.toml").read_text()

    assert main(["try"], app_with(command)) == 1
    assert error_line(capsys) == "holdfast: error: no-such-job.toml: No such file or directory"


def test_an_error_of_the_system_without_a_file(capsys):
    assert main(["try"], raising(ConnectionRefusedError(111, "Connection refused"))) == 1
    assert error_line(capsys) == "holdfast: error: Connection refused"


def test_interrupted(capsys):
    assert main(["try"], raising(KeyboardInterrupt())) == 130
    assert error_line(capsys) == "holdfast: interrupted"


@pytest.mark.parametrize("error", [InternalError("epoch 3 after 4"), ZeroDivisionError("oops")])
def test_a_bug_shows_where_it_happened(error, capsys):
    assert main(["try"], raising(error)) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("holdfast: internal error: ")


def test_debug_shows_the_traceback_of_any_error(monkeypatch, capsys):
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert main(["try"], raising(HoldfastError("no"))) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("holdfast: error: no\n")


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3), (True, 1)])
def test_a_command_returns_its_exit_code(result, code):
    assert main(["try"], app_with(lambda: result)) == code


def test_a_command_that_returns_something_else_is_a_bug(capsys):
    assert main(["try"], app_with(lambda: "done")) == 70
    assert "exit code or None, not str" in capsys.readouterr().err


def test_flags_may_be_spelled_with_underscores():
    seen = []

    def command(*, micro_batches: int, name: str) -> None:
        seen.append((micro_batches, name))

    argv = ["try", "--micro_batches", "4", "--name=a_b"]
    assert main(argv, app_with(command)) == 0
    assert seen == [(4, "a_b")]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--micro_batches=a_b"], ["--micro-batches=a_b"]),
        (["--snapshot.keep_latest_k", "my_run"], ["--snapshot.keep-latest-k", "my_run"]),
        (["-_x", "a_b"], ["-_x", "a_b"]),
        (["run", "--a_b", "train.py", "--c_d"], ["run", "--a-b", "train.py", "--c_d"]),
        (["run", "--a_b", "--", "--c_d"], ["run", "--a-b", "--", "--c_d"]),
    ],
)
def test_only_our_own_flags_are_respelled(argv, expected):
    assert normalise_flags(argv) == expected


def all_commands(app: App) -> list[list[str]]:
    """`[]`, `["run"]`, `["plan", "show"]`: everything that has a --help."""
    found: list[list[str]] = [[]]
    for name in app:
        if not name.startswith("-"):
            found += [[name, *rest] for rest in all_commands(app[name])]
    return found


@pytest.mark.process
def test_no_help_loads_anything_heavy():
    helps = [[*words, "--help"] for words in all_commands(build_app())]
    assert {"run", "init", "doctor", "plan"} <= {words[0] for words in helps}
    code = (
        f"import sys; from holdfast.cli.main import main; codes = [main(w) for w in {helps!r}];"
        f"print('codes', *set(codes), 'loaded', *(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["codes", "0", "loaded"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_commands(shell):
    script = build_app().generate_completion(shell=shell)
    assert "doctor" in script
    assert "dry-run" in script


def test_completion_is_installed_where_it_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = tmp_path / "holdfast.bash"
    words = ["--install-completion", "--shell", "bash", "--output", str(wanted)]
    assert main(words) == 0
    assert "doctor" in wanted.read_text()


@pytest.mark.process
def test_a_command_ends_without_a_last_look_at_everything():
    """Which would take half a second with torch."""
    code = (
        "import atexit, gc, sys; from holdfast.cli.main import main; sys.argv = ['', '--version'];"
        "atexit.register(lambda: print('kept out of it', gc.get_freeze_count() > 10_000)); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "kept out of it True"


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_error():
    code = (
        "import sys; from cyclopts import App; from holdfast.cli.main import main\n"
        "app = App()\n"
        "@app.default\n"
        "def flood() -> None:\n"
        "    for line in range(100_000): print(line)\n"
        "sys.exit(main([], app))"
    )
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.process
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_output_is_no_error(closed):
    words = "plan show --stages 2 --micro-batches 4"
    command = f'"{sys.executable}" -m holdfast.cli.main {words} {closed}'
    assert subprocess.run(command, shell=True, check=False, capture_output=True).returncode == 0


@pytest.mark.process
@pytest.mark.parametrize("module", ["holdfast", "holdfast.cli.main"])
def test_as_a_module(module):
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", done.stdout)
