import re

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.config.job_file import format_job
from holdfast.runtime.config.settings import (
    flag_layer,
    nearest,
    parse_value,
    read_config,
    split_flags,
)

MINIMAL = "[job]\nsteps = 4\n"


@pytest.fixture
def read(tmp_path):
    """A config from the text of a job file, flags and environment."""

    def read(text=MINIMAL, flags=(), **environment):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return read_config(path, flags, environment)

    return read


@pytest.fixture
def refusal(read):
    def refusal(*args, **kwargs) -> str:
        with pytest.raises(HoldfastError) as caught:
            read(*args, **kwargs)
        line = str(caught.value)
        assert "\n" not in line
        return line

    return refusal


def test_command_line_over_environment_over_file(read):
    text = MINIMAL + "[parallel]\nreplicas = 2\nstages = 2\ntensor = 2\n"
    config = read(
        text,
        ["--parallel.replicas", "3"],
        HOLDFAST_PARALLEL__REPLICAS="5",
        HOLDFAST_PARALLEL__STAGES="4",
        HOLDFAST_DEBUG="1",
        PATH="/bin",
    )
    assert (config.parallel.replicas, config.parallel.stages, config.parallel.tensor) == (3, 4, 2)


@pytest.mark.parametrize(
    ("alias", "key"),
    [
        ("dp_replicate", "replicas"),
        ("dp_shard", "shard"),
        ("tp", "tensor"),
        ("pp", "stages"),
        ("tensor_parallel_degree", "tensor"),
        ("pipeline_parallel_degree", "stages"),
        ("data_parallel_replicate_degree", "replicas"),
        ("data_parallel_shard_degree", "shard"),
        ("tensor_model_parallel_size", "tensor"),
    ],
)
def test_the_names_of_the_field(alias, key, read):
    assert getattr(read(MINIMAL + f"[parallel]\n{alias} = 3").parallel, key) == 3
    assert getattr(read(flags=[f"--{alias}", "3"]).parallel, key) == 3
    environment = {f"HOLDFAST_PARALLEL__{alias.upper()}": "3"}
    assert getattr(read(**environment).parallel, key) == 3


def test_a_range_of_hosts_as_torchrun_takes_it(read):
    for config in (
        read(MINIMAL + "[net]\nnnodes = '2:4'"),
        read(flags=["--nnodes", "2:4"]),
        read(HOLDFAST_NET__NNODES="2:4"),
    ):
        assert (config.net.min_nodes, config.net.nodes) == (2, 4)
    assert read(flags=["--nnodes", "4"]).net.min_nodes == 0


@pytest.mark.parametrize(
    ("flags", "section", "key", "value"),
    [
        (["--steps", "9"], "job", "steps", 9),
        (["--job.name=7"], "job", "name", "7"),
        (["--job.verify"], "job", "verify", True),
        (["--verify", "--steps", "9"], "job", "verify", True),
        (["--job.verify", "false"], "job", "verify", False),
        (["--job.no-verify"], "job", "verify", False),
        (["--no-keep-final"], "job", "keep_final", False),
        (["--job.run-dir", "a_b"], "job", "run_dir", "a_b"),
        (["--tied"], "model", "tied", True),
        (["--optimizer.betas", "0.8,0.9"], "optimizer", "betas", (0.8, 0.9)),
        (["--lr", "1e-4"], "optimizer", "learning_rate", 1e-4),
        (["--learning-rate", "1"], "optimizer", "learning_rate", 1.0),
        (["--split", "3,3"], "parallel", "split", "3,3"),
        (["--parallel.split", "cost"], "parallel", "split", "cost"),
        (["--timeout-s", "7"], "job", "timeout_s", 7.0),
    ],
)
def test_flags(flags, section, key, value, read):
    assert getattr(getattr(read(flags=flags), section), key) == value


def test_flags_keep_their_order():
    assert list(split_flags(["--a", "--b=1=2", "--c", "-3"])) == [
        ("--a", None),
        ("--b", "1=2"),
        ("--c", "-3"),
    ]
    layer = flag_layer(["--tp", "2", "--tensor", "4"])
    assert layer["parallel"]["tensor"].value == 4


def test_text_is_kept_where_text_is_wanted():
    assert parse_value("job", "name", "123") == "123"
    assert parse_value("job", "steps", "123") == 123
    assert parse_value("optimizer", "betas", "[0.5, 0.6]") == [0.5, 0.6]


def test_paths_are_relative_to_the_file_that_names_them(read, tmp_path):
    text = MINIMAL + '[data]\nkind = "tokens"\npath = "a.bin"\n[parallel]\nplan = "p.toml"\n'
    config = read(text)
    assert config.data.path == str(tmp_path / "a.bin")
    assert config.parallel.plan == str(tmp_path / "p.toml")
    assert read(text, ["--plan", "here.toml"]).parallel.plan == "here.toml"


def test_a_change_keeps_what_it_does_not_name(read):
    config = read(
        MINIMAL
        + """
        [parallel]
        replicas = 2
        tensor = 2
        [[change]]
        at_step = 1
        tp = 1
        [[change]]
        at_step = 2
        plan = "p.toml"
        [[change]]
        at_step = 3
        replicas = 1
        """
    )
    first, file, last = (change.parallel for change in config.changes)
    assert (first.replicas, first.tensor) == (2, 1)
    assert file.plan.endswith("/p.toml")
    assert (last.replicas, last.tensor, last.plan) == (1, 1, "")


def test_what_is_written_reads_back_the_same(read):
    config = read(
        MINIMAL
        + "[parallel]\nreplicas = 2\nsplit = [3, 3]\nstages = 2\n[data]\nseed = 3\n[[change]]\n"
        + "at_step = 2\nreplicas = 1\n[recovery]\nmode = 'fast'\nheartbeat_ms = 50\n"
        + "[[faults]]\nkind = 'SIGKILL'\nat_step = 3\nphase = 'agree'\n"
        + "[[faults]]\nkind = 'SLOW'\ntarget = 'n0.g1'\nmean_time_s = 2.5\nfactor = 3.0\n"
    )
    assert config.recovery.mode == "fast"
    assert [fault.kind for fault in config.faults] == ["SIGKILL", "SLOW"]
    assert read(format_job(config)) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[job]\nstep = 4\n", ["[job] has no key 'step'; did you mean 'steps'?"]),
        (MINIMAL + "[paralel]\n", ["no section [paralel]; did you mean 'parallel'?"]),
        (MINIMAL + "[parallel]\nqq = 1", ["no key 'qq'; known: plan, replicas"]),
        (MINIMAL + "[parallel]\ntp = 2\ntensor = 2", ["tp = 2 and tensor = 2 are the same key"]),
        ('[job]\nsteps = "ten"', ["job.steps = 'ten'", "expected int, got str"]),
        ("[job]\nsteps = 0", ["job.steps = 0", ">= 1"]),
        ("[job]\nname = 'x'", ["[job] does not say steps"]),
        (MINIMAL + "dtype = 'float16'", ["job.dtype = 'float16'", "'float32', 'float64'"]),
        (MINIMAL + "name = 'a/b'", ["job.name = 'a/b'"]),
        (MINIMAL + "port = 70000", ["job.port = 70000", "65535"]),
        (MINIMAL + "[optimizer]\nbetas = [0.9, 1.5]", ["optimizer.betas = [0.9, 1.5]", "< 1"]),
        ("job = 3", ["job = 3", "section [job]"]),
        ("[job\n", ["not a TOML file"]),
        (MINIMAL + "[[change]]\ntp = 2", ["[[change]] number 1", "does not say at_step"]),
        (MINIMAL + "[[change]]\nat_step = 2", ["changes nothing"]),
        (MINIMAL + "[[change]]\nat_step = 0\ntp = 2", ["at_step = 0", ">= 1"]),
        (MINIMAL + "[[change]]\nat_step = 2\nseed = 2", ["[[change]] has no key 'seed'"]),
        (MINIMAL + "[change]\nat_step = 2", ["[[change]]"]),
        (MINIMAL + "[faults]\nkind = 'SIGKILL'", ["sections [[faults]] are needed"]),
        (
            MINIMAL + "[[faults]]\nkind = 'SIGKIL'",
            ["[[faults]] number 1", "kind = 'SIGKIL': did you mean 'SIGKILL'?"],
        ),
        (MINIMAL + "[[faults]]\nat_step = 3", ["missing required field kind"]),
        (
            MINIMAL + "[[faults]]\nkind = 'SIGKILL'\nat_step = 3\nmean_time_s = 1.0",
            ["a fault comes at a step or at random times"],
        ),
        (MINIMAL + "[recovery]\nmode = 'slow'", ["recovery.mode = 'slow'", "'exact', 'fast'"]),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(text, words, refusal, tmp_path):
    line = refusal(text)
    assert line.startswith(f"{tmp_path / 'job.toml'}: ")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--parallel.tenser", "2"],
            "--parallel.tenser is no setting; did you mean 'parallel.tens",
        ),
        (["--stepz", "2"], "--stepz is no setting; did you mean 'job.steps'?"),
        (["--modl.dim", "2"], "no section [modl]; did you mean 'model'?"),
        (["--seed", "2"], "--seed is not clear: say --job.seed or --data.seed"),
        (["--steps"], "--steps needs a value"),
        (["--no-steps"], "--no-steps is no setting"),
        (["steps", "2"], "'steps' is not a setting like --job.steps 10"),
    ],
)
def test_a_mistake_on_the_command_line_is_wrong_usage(flags, words, read):
    with pytest.raises(HoldfastError, match=re.escape(words)) as caught:
        read(flags=flags)
    assert caught.value.exit_code == 2


def test_a_wrong_value_names_where_it_was_given(refusal):
    assert refusal(flags=["--steps", "ten"]).startswith("--steps: job.steps = 'ten': expected int")
    line = refusal(HOLDFAST_JOB__STEPS="ten")
    assert line.startswith("HOLDFAST_JOB__STEPS: job.steps = 'ten'")


def test_the_environment_is_checked_like_the_file(refusal):
    line = refusal(HOLDFAST_JOB__STEP="3")
    assert line == "HOLDFAST_JOB__STEP: [job] has no key 'step'; did you mean 'steps'?"
    assert "no section [jobs]" in refusal(HOLDFAST_JOBS__STEPS="3")


def test_a_script_is_refused(tmp_path):
    with pytest.raises(HoldfastError, match=r"train\.py is a Python script"):
        read_config(tmp_path / "train.py")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HoldfastError, match="not a text file"):
        read_config(path)


def test_nearest():
    assert nearest("stage", ["stages", "steps"]) == "did you mean 'stages'?"
    assert nearest("zzz", ["stages", "steps"]) == "known: stages, steps"
