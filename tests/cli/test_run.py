import json
import socket

import numpy as np
import psutil
import pytest

from holdfast.cli.main import main
from holdfast.data.token_file import write_token_file
from tidy.source_tree import ROOT

JOB = """
[job]
steps = 6
[data]
micro_batches = 4
[parallel]
replicas = 2
"""


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def refusal(argv, capsys, code=1) -> str:
    """The one line of a job that is refused; nothing was started, nothing is written."""
    children = psutil.Process().children(recursive=True)
    assert main(["run", *map(str, argv)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert psutil.Process().children(recursive=True) == children
    return err.strip()


def test_an_unknown_key(job_file, capsys):
    job_file.write_text(JOB + "tensr = 2\n")
    assert refusal([job_file], capsys) == (
        f"holdfast: error: {job_file}: [parallel] has no key 'tensr'; did you mean 'tensor'?"
    )


def test_an_unknown_flag(job_file, capsys):
    line = refusal([job_file, "--parallel.tensr", "2"], capsys, code=2)
    assert "--parallel.tensr is no setting; did you mean 'parallel.tensor'?" in line


def test_an_impossible_split(job_file, capsys):
    line = refusal([job_file, "--stages", "7"], capsys)
    assert line.endswith("6 units cannot fill 7 stages: every stage needs one at least")
    line = refusal([job_file, "--tensor", "16"], capsys)
    assert "tensor degree 16" in line


def test_too_few_micro_batches(job_file, capsys):
    line = refusal([job_file, "--replicas", "5"], capsys)
    assert "4 micro-batches cannot feed 5 replicas" in line


def test_a_port_in_use(job_file, capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal([job_file, "--port", port], capsys)
    assert f"job.port = {port}" in line
    assert "Address already in use" in line
    assert not (tmp_path / "runs").exists()


def test_a_token_file_that_is_too_short(job_file, capsys, tmp_path):
    write_token_file(tmp_path / "short.bin", np.arange(200, dtype=np.uint16))
    line = refusal([job_file, "--data.kind", "tokens", "--data.path", "short.bin"], capsys)
    assert "short.bin has 200 tokens, 6 rows; one step needs 8 (4 micro-batches" in line


def test_a_script_and_a_file_that_is_not_there(job_file, capsys):
    assert "train.py is a Python script" in refusal(["train.py", "--lr", "3"], capsys)
    assert refusal(["no.toml"], capsys).endswith("no.toml: No such file or directory")


def test_a_dry_run_says_what_would_happen(job_file, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_PARALLEL__STAGES", "2")
    job_file.write_text(JOB + "[[change]]\nat_step = 3\nstages = 1\n")
    assert main(["run", str(job_file), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "ok: llama-tiny (229,952 parameters), 6 steps of 4 micro-batches (2 x 32 tokens each), "
        "4 workers"
    )
    assert lines[1] == "from step 0: 2 replicas x 2 stages, 1f1b, 4 workers"
    assert lines[2] == "from step 3: 2 replicas x 1 stage, 1f1b, 2 workers"
    assert any("MiB" in line for line in lines[3:])
    assert not (tmp_path / "runs").exists()
    assert main(["run", str(job_file), "--dry-run", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert [plan["at_step"] for plan in numbers["plans"]] == [0, 3]
    assert numbers["changes"][0]["at_step"] == 3


@pytest.mark.parametrize("name", ["tiny", "changes"])
def test_examples_are_right(name, capsys):
    assert main(["run", str(ROOT / "examples" / f"{name}.toml"), "--dry-run"]) == 0
    assert "ok: llama-tiny" in capsys.readouterr().out


def test_the_example_for_tokens(tmp_path, capsys):
    path = tmp_path / "tokens.npy"
    write_token_file(path, np.arange(20_000, dtype=np.uint16))
    example = ROOT / "examples" / "tokens.toml"
    assert main(["run", str(example), "--data.path", str(path), "--dry-run"]) == 0
    assert "ok: llama-small" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.slow
def test_a_run_from_the_command_line(job_file, capsys, tmp_path, lent_fork_server):
    assert main(["run", str(job_file), "--job.run-dir", "out", "--job.steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run: llama-tiny (229,952 parameters), 2 steps")
    assert "plan: 2 replicas x 1 stage" in lines
    assert any(line.startswith("workers ready after ") for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["1/2", "2/2"]
    (finished,) = [line for line in lines if line.startswith("finished: 2 steps, loss ")]
    assert (tmp_path / "out" / "report.json").is_file()
    again = ["run", str(job_file), "--job.run-dir", "out", "--job.steps", "2"]
    assert main(again) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "out: finished before, all 2 steps are done"
    assert second == finished


@pytest.mark.process
@pytest.mark.slow
def test_what_the_processes_log_is_shown_where_asked_for(job_file, capsys, lent_fork_server):
    assert main(["run", str(job_file), "--steps", "1", "-v"]) == 0
    out, err = capsys.readouterr()
    assert "finished: 1 step" in out
    assert "info agent n0: started n0.g0#1, process " in err
    assert "info n0.g1: assigned as n0.g1#1" in err


def test_silence_and_more_words_exclude_each_other(job_file, capsys):
    line = refusal([job_file, "--quiet", "--verbose"], capsys, code=2)
    assert line == "holdfast: error: --quiet and --verbose exclude each other"


@pytest.mark.process
@pytest.mark.slow
def test_a_report_for_other_programs(job_file, capsys, lent_fork_server):
    assert main(["run", str(job_file), "--steps", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["outcome"], report["steps"]) == ("finished", 1)
    assert main(["run", str(job_file), "--steps", "1", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.process
@pytest.mark.slow
def test_a_run_that_fails(job_file, capsys, tmp_path, lent_fork_server):
    write_token_file(tmp_path / "wrong.bin", np.full(1000, 300, dtype=np.uint16))
    flags = ["--data.kind", "tokens", "--data.path", "wrong.bin", "--json"]
    assert main(["run", str(job_file), *flags]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["outcome"] == "failed"
    assert err.count("\n") == 1
    assert "wrong.bin has token 300" in err
