"""`holdfast submit`: what it makes of a job file, and what it refuses."""

import json
import subprocess
from pathlib import Path

import pytest

from holdfast.api.submission import make_request
from holdfast.cli.main import main
from tidy.source_tree import ROOT

TINY = str(ROOT / "examples" / "tiny.toml")


def test_hosts_follow_from_the_plan(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = ["--replicas", "4", "--stages", "2", "--nproc-per-node", "4", "--job.name", "big"]
    found = make_request(Path(TINY), settings, num_spare_hosts=1)
    assert (found.num_nodes, found.num_hosts, found.devices_per_node) == (2, 3, 4)
    assert found.settings == tuple(settings)
    assert found.folder == str(tmp_path)


def test_a_job_for_gpus_is_submitted_from_a_host_without(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = make_request(Path(TINY), ["--device", "cuda"])
    assert found.is_cuda


def test_printing_submits_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", None)  # it would be called
    argv = ["submit", TINY, "--to", "slurm", "--print", "--rdzv", "dir:met", "--with", "time=60"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=tiny\n")
    assert f"rendezvous=dir:{tmp_path}/met\n" in text
    assert "#SBATCH --time=60\n" in text
    assert list(tmp_path.iterdir()) == []


def test_a_ray_job(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["submit", TINY, "--to", "ray", "--steps", "3", "--with", "address=http://h:8265"]
    assert main([*argv, "--with", "cpus=4", "--print", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    entry = f"python -m holdfast.ray {TINY} --with=cpus=4 --steps 3"
    start = ["ray", "job", "submit", "--no-wait", "--address", "http://h:8265", "--"]
    assert found["command"] == [*start, "sh", "-c", entry]


def test_manifests(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["submit", TINY, "--to", "kubernetes", "--print"]
    assert main([*argv, "--with", "image=me/train:1", "--with", "claim=lake"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["items"][0]["data"]["job.toml"] == Path(TINY).read_text()
    assert main(argv) == 1
    assert "needs to be told the image" in capsys.readouterr().err


def test_for_other_programs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["submit", TINY, "--to", "slurm", "--print", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == ["sbatch", "--parsable"]
    assert found["job_id"] == ""


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--to", "slurm", "--job.steps", "0"], "job.steps = 0"),
        (["--to", "slurm", "--spare-hosts", "-1"], "--spare-hosts -1"),
        (["--to", "slurm", "--with", "a b"], "expected name=value"),
        (["--to", "ray", "--with", "cpus=many"], "a number is needed"),
        (["--to", "ray", "--with", "partition=x"], "Ray is given address, cpus, resource"),
        (["--to", "lsf"], "lsf"),
        ([], "--to"),
    ],
)
def test_what_is_refused(monkeypatch, tmp_path, capsys, argv, why):
    monkeypatch.chdir(tmp_path)
    assert main(["submit", TINY, "--print", *argv]) in (1, 2)
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1


def test_without_slurm(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", TINY, "--to", "slurm"]) == 1
    assert "there is no sbatch here" in capsys.readouterr().err
