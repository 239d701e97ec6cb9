"""The data of a job: what [eval] takes from [data], what is refused before any worker starts, and
what a run that goes on must have.
"""

import msgspec
import numpy as np
import pytest

from data.sources import texts, write_json_lines, write_megatron
from holdfast.cli.main import main
from holdfast.data.token_file import write_token_file
from holdfast.errors import HoldfastError
from holdfast.runtime.config.data_sections import DataSection, EvalSection
from holdfast.runtime.config.data_source import (
    data_keys,
    open_rows,
    source_specs,
    with_absolute_paths,
)
from holdfast.runtime.config.job_file import format_job
from holdfast.runtime.config.section_types import default_of
from holdfast.runtime.config.settings import read_config
from holdfast.runtime.launch.data_summary import data_lines, summarise_data
from holdfast.runtime.launch.prepare import prepare_job
from holdfast.runtime.record.recorder import resolved
from holdfast.runtime.worker.build import UNSEEN_STEP, make_data, make_eval

JOB = """
[job]
steps = 4
[data]
path = "corpus/*.jsonl"
tokenizer = "bytes"
kind = "packed"
cache = "cache"
rows = 2
micro_batches = 2
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "corpus").mkdir()
    for number in range(2):
        write_json_lines(tmp_path / "corpus" / f"{number}.jsonl", texts(20, seed=number))
    write_json_lines(tmp_path / "held.jsonl", texts(30, seed=9))
    write_json_lines(tmp_path / "other.jsonl", texts(10, seed=5), field="body")
    write_token_file(tmp_path / "tokens.bin", np.arange(3000) % 200)
    write_megatron(tmp_path / "m", [[list(range(200))] for _ in range(9)])
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def config_of(folder, *flags, text=JOB):
    (folder / "job.toml").write_text(text)
    return read_config(folder / "job.toml", flags)


def refusal(config):
    with pytest.raises(HoldfastError) as caught:
        prepare_job(config)
    return str(caught.value)


def test_a_job_reads_what_was_prepared(folder):
    job = prepare_job(config_of(folder))
    (store,) = job.config.data.prepared
    for path in (folder / "corpus").iterdir():
        path.unlink()  # workers do not need it any more
    data = make_data(job.config, 2)
    batch = data.micro_batch(3, 1)
    assert tuple(batch.tokens.shape) == (2, 32)
    assert data.packed
    lines = [bytes(row).decode(errors="replace") for row in batch.tokens.tolist()]
    assert any("alpha" in line or "beta" in line or "ta" in line for line in lines)
    (rows,) = open_rows(job.config, "data")
    assert rows.name == str(folder / "corpus/*.jsonl")
    assert make_eval(job.config) is None
    assert store.startswith(str(folder / "cache"))


def test_nothing_is_written_without_tokenising(folder):
    job = prepare_job(config_of(folder), tokenise=False)
    assert job.config.data.prepared == ()
    assert not (folder / "cache").exists()
    (line,) = data_lines(job, summarise_data(job))
    assert line.endswith("is not prepared yet: the run does it, or holdfast data prepare")


def test_a_mixture_and_a_validation_set(folder):
    text = (
        JOB.replace('path = "corpus/*.jsonl"\n', "").replace('kind = "packed"\n', "")
        + """
[[data.sources]]
path = "corpus"
weight = 3
[[data.sources]]
path = "other.jsonl"
field = "body"
[[data.sources]]
path = "m.bin"
[eval]
path = "held.jsonl"
every_steps = 2
"""
    )
    job = prepare_job(config_of(folder, text=text))
    found = summarise_data(job)
    assert [(one.section, one.format, round(one.share, 3)) for one in found] == [
        ("data", "jsonl", 0.6),
        ("data", "jsonl", 0.2),
        ("data", "megatron", 0.2),
        ("eval", "jsonl", 1.0),
    ]
    assert found[0].num_documents == 40
    assert all(" rows" in line for line in data_lines(job, found))
    assert data_keys(job.config, "eval").tokenizer.endswith("bytes")
    specs = source_specs(job.config, "data")
    assert (specs[1].field, specs[0].field, specs[2].tokenizer) == ("body", "text", "")
    evaluated = make_eval(resolved(job))
    assert (evaluated.num_micro_batches, evaluated.every_steps, evaluated.first_step) == (2, 2, 0)
    assert evaluated.is_due(4) > evaluated.is_due(5)
    kept = read_config_of_text(folder, format_job(resolved(job)))
    assert kept.data == with_absolute_paths(job.config.data)


def read_config_of_text(folder, text):
    (folder / "again.toml").write_text(text)
    return read_config(folder / "again.toml")


def test_the_synthetic_task_is_evaluated_on_what_no_step_reaches(folder):
    job = prepare_job(config_of(folder, text="[job]\nsteps = 4\n[eval]\nevery_steps = 1\n"))
    assert make_eval(resolved(job)).first_step == UNSEEN_STEP > job.config.job.steps


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data.tokenizer", "no.json"], ["[data] tokenizer = 'no.json'", "'bytes' needs none"]),
        (["--model.vocab", "100"], ["'bytes' has 256 tokens", "vocabulary is 100", "model.vocab"]),
        (["--data.field", "body"], ["0.jsonl, line 1 has no field 'body'", "'id', 'text'"]),
        (["--data.rows", "90"], ["one step needs 180 (2 micro-batches x 90 rows x 32 tokens)"]),
        (["--data.path", "no.jsonl"], ["[data] path = 'no.jsonl'", "no such file"]),
        (["--data.format", "parquet"], ["is no Parquet file"]),
        (["--data.end_token", "</s>"], ["end_token = '</s>'", "bytes end with 0"]),
        (["--data.kind", "synthetic"], ["data.path", "'synthetic'"]),
        (["--data.truncate", "begin"], ["data.truncate = 'begin'", "'documents'", "'packed'"]),
        (["--eval.every_steps", "2"], ["eval.every_steps = 2 needs a validation set"]),
        (["--eval.path", "held.jsonl"], ["eval.every_steps = 0"]),
        (
            ["--eval.every_steps", "2", "--eval.path", "no.jsonl"],
            ["[eval] path = 'no.jsonl'", "no such file"],
        ),
        (
            ["--data.sources", "[{path='a'}]"],
            ["[data] path", "and sources = ['a'] contradict each other"],
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(folder, flags, words):
    line = refusal(config_of(folder, *flags))
    for word in words:
        assert word in line
    assert "\n" not in line


def test_tokens_that_do_not_fit(folder):
    bare = ["--data.path", str(folder / "tokens.bin")]
    line = refusal(config_of(folder, *bare))
    assert "tokenizer = 'bytes' is for text" in line
    assert "holds tokens (tokens): leave it out" in line
    text = JOB.replace('tokenizer = "bytes"\n', "")
    assert "no tokenizer is given" in refusal(config_of(folder, text=text))
    job = prepare_job(config_of(folder, *bare, "--data.kind", "tokens", text=text))
    assert make_data(job.config, 2).micro_batch(0, 0)
    line = refusal(config_of(folder, *bare, "--data.kind", "documents", text=text))
    assert "does not say where document 0 is: use kind = 'tokens'" in line


@pytest.fixture
def run_dir(folder):
    """Of a run that has begun."""
    run_dir = folder / "run"
    run_dir.mkdir()
    config = resolved(prepare_job(config_of(folder)))
    (run_dir / "job.toml").write_text(format_job(config))
    (run_dir / "journal.jsonl").write_text("")
    return run_dir


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data.seq_len", "16"], "data.seq_len = 32, this job has data.seq_len = 16"),
        (["--data.micro_batches", "3"], "data.micro_batches = 2, this job has"),
        (["--data.kind", "tokens"], "data.kind = 'packed', this job has data.kind = 'tokens'"),
        (["--job.seed", "4"], "data.seed = 0, this job has data.seed = 4"),
        (["--data.path", "held.jsonl"], "was trained with data.prepared = ["),
    ],
)
def test_a_run_goes_on_with_the_data_it_had(folder, run_dir, flags, words, monkeypatch):
    monkeypatch.chdir(folder)
    flags = ["--job.run_dir", str(run_dir), *flags]
    line = refusal(config_of(folder, *flags))
    assert words in line
    assert "--job.allow_other_data" in line
    prepare_job(config_of(folder, *flags, "--job.allow_other_data"))


def test_files_may_have_moved(folder, run_dir):
    (folder / "corpus").rename(folder / "moved")
    path = str(folder / "moved" / "*.jsonl")
    prepare_job(config_of(folder, "--job.run_dir", str(run_dir), "--data.path", path))
    assert msgspec.structs.replace(config_of(folder).data, path="") != config_of(folder).data


def test_data_prepare_says_what_there_is(folder, capsys):
    assert main(["data", "prepare", str(folder / "job.toml")]) == 0
    told = capsys.readouterr()
    assert "preparing" in told.err
    assert "40 documents" in told.out
    assert "steps are an epoch" in told.out
    assert main(["data", "prepare", str(folder / "job.toml"), "--json"]) == 0
    assert '"num_documents": 40' in capsys.readouterr().out
    (folder / "none.toml").write_text("[job]\nsteps = 1\n")
    assert main(["data", "prepare", str(folder / "none.toml")]) == 1
    assert "needs no preparation" in capsys.readouterr().err


def test_both_sections_have_the_keys_of_a_source():
    assert default_of(DataSection, "tokenizer") == default_of(EvalSection, "tokenizer") == ""
    assert default_of(EvalSection, "every_steps") == 0
