import json
import re
import socket

import pytest

from holdfast.cli.main import main
from holdfast.cli.view_control import JobControl
from holdfast.cli.view_what_if import what_if
from holdfast.runtime.wire.secret import write_secret
from support.made_runs import MadeRun, disturbed_run


def test_a_run_under_restarts():
    """Two incidents of the made run would have been restarts; one of them hangs for ten minutes."""
    run = disturbed_run().end().model()
    rare, often = what_if(run)
    assert rare["seconds"] >= often["seconds"] > 600
    assert rare["ratio"] < run.goodput().goodput
    for entry in (rare, often):
        assert sum(part["seconds"] for part in entry["parts"]) == pytest.approx(entry["seconds"])
        assert sum(part["share"] for part in entry["parts"]) == pytest.approx(1.0)


def test_nothing_has_happened():
    assert what_if(MadeRun().start().steps(20).lose_coordinator().steps(3).model()) == []
    assert what_if(MadeRun().start().model()) == []


def test_the_secret_of_the_run(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_SECRET", raising=False)
    write_secret(tmp_path, "0123456789abcdef")
    control = JobControl(tmp_path)
    assert control.allows("0123456789abcdef")
    for wrong in ("", "0123456789abcde", "0123456789abcdef ", "ÿ"):
        assert not control.allows(wrong)


def test_a_page_in_one_file(tmp_path, capsys):
    out = tmp_path / "run.html"
    run_dir = disturbed_run().end().write(tmp_path / "run")
    assert main(["view", str(run_dir), "--out", str(out)]) == 0
    assert "KiB" in capsys.readouterr().out
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', out.read_text())
    data = json.loads(inside[1])
    assert len(data["run"]["what_if"]) == 2
    assert data["plans"]
    assert "kinds" not in data


def test_a_port_of_the_page_in_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job.toml"
    job.write_text('[job]\nname = "x"\nsteps = 1\nrun_dir = "run"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["run", str(job), "--view.port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
