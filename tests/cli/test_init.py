"""A job file for this machine: what it chooses, and that it runs."""

import tomllib

import numpy as np
import pytest

from holdfast.cli.init_job import InitAsked, Layout, Machine, choose_layout, job_text
from holdfast.cli.main import main
from holdfast.data.token_file import write_token_file
from holdfast.errors import HoldfastError
from tidy.source_tree import ROOT

GIB = 2**30


@pytest.mark.parametrize(
    ("machine", "num_parameters", "layout"),
    [
        (Machine(2, 16 * GIB, GIB), 10**5, Layout(2, 1)),
        (Machine(1, 16 * GIB, GIB), 10**5, Layout(2, 1)),
        (Machine(64, 512 * GIB, GIB), 10**5, Layout(4, 1)),
        (Machine(8, 16 * GIB, GIB), 5 * 10**8, Layout(1, 1)),
        (Machine(8, 80 * GIB, GIB, "H100"), 10**9, Layout(8, 1)),
        (Machine(8, 80 * GIB, GIB, "H100"), 10 * 10**9, Layout(2, 4)),
        (Machine(1, 80 * GIB, GIB, "H100"), 10**9, Layout(1, 1)),
    ],
)
def test_layouts(machine, num_parameters, layout):
    assert choose_layout(machine, num_parameters, "m") == layout


@pytest.mark.parametrize("machine", [Machine(2, GIB, GIB), Machine(2, 8 * GIB, GIB, "H100")])
def test_what_does_not_fit_is_refused(machine):
    with pytest.raises(HoldfastError, match=r"m has 7,000,000,000 parameters.*a smaller model"):
        choose_layout(machine, 7 * 10**9, "m")


def test_a_machine_with_gpus(tmp_path):
    asked = InitAsked("", None, None, 100, False)
    machine = Machine(8, 80 * GIB, GIB, "H100")
    text = job_text(asked, tmp_path / "job.toml", machine, Layout(4, 2), 10**9)
    tables = tomllib.loads(text)
    assert tables["job"]["device"] == "cuda"
    assert tables["precision"]["compute"] == "bfloat16"
    assert tables["parallel"] == {"replicas": 4, "stages": 2, "tensor": 1}
    assert tables["data"]["micro_batches"] == 16


def test_what_is_written_passes_and_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_token_file("tokens.npy", np.arange(4000) % 64)
    assert main(["init", "job.toml", "--data", "tokens.npy", "--all"]) == 0
    assert "next: holdfast run job.toml" in capsys.readouterr().out
    text = (tmp_path / "job.toml").read_text()
    assert 'path = "tokens.npy"' in text
    assert "# keep_final = false" in text
    assert main(["run", "job.toml", "--dry-run"]) == 0
    capsys.readouterr()
    assert main(["init", "job.toml"]) == 1
    assert "is there already: --force writes over it" in capsys.readouterr().err
    assert (tmp_path / "job.toml").read_text() == text
    assert main(["init", "job.toml", "--force", "--steps", "7"]) == 0
    assert "steps = 7" in (tmp_path / "job.toml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "lama-tiny"], "lama-tiny"),
        (["--hf", "nowhere"], "has no config.json"),
        (["--hf", "x", "--model", "llama-tiny"], "name one of them"),
        (["--data", "none.npy"], "none.npy"),
        (["--model", "nowhere:build"], "there is no module 'nowhere'"),
    ],
)
def test_mistakes_write_nothing(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", *words]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_model_of_hugging_face(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--hf", str(ROOT / "examples" / "tiny-qwen3")]) == 0
    assert "238,272 parameters" in capsys.readouterr().out
