"""A table of bad input: each kind is one line, exit code 1 or 2, quick, and nothing is written.

Nothing of it needs torch, which is what takes seconds; so the time is that of the processor, and
real processes are tried with a sample.
"""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from holdfast.cli.main import main
from holdfast.data.token_file import write_token_file
from holdfast.runtime.config.job_file import JobConfig

JOB = "[job]\nsteps = 4\n"
MAX_CPU_S = 3.0


def settings() -> list[tuple[str, str]]:
    """(key, value in TOML), each wrong by itself."""
    table = {
        "job.steps": "0 -1 1.5 'four' nan 10000000000 true",
        "job.name": f"'a/b' '' '-x' 3 '{'x' * 51}'",
        "job.seed": "-1 0.5 9223372036854775808 nan",
        "job.dtype": "'float16' 'int8' 32",
        "job.device": "'gpu' 'cuda:0' 'tpu' 'cuda'",
        "job.backend": "'mpi' 'nccl'",
        "job.host": "'0.0.0.0' '::' '::1' '' '224.0.0.1' '203.0.113.7' 'no such host' 127",
        "job.port": "-1 65536 'http' 0.5",
        "job.timeout_s": "0 -1 nan inf 1e300",
        "job.grace_s": "0 -1 nan inf 1e300",
        "job.threads": "-1 1000000 nan",
        "job.run_dir": "'a.txt' '/proc/nowhere' 3 \"\\u0000\"",
        "job.resume": "'no-run' 'a.txt'",
        "job.tls_cert": "'a.txt' 'none.pem'",
        "job.compile": "'yes' 1",
        "job.verify": "'yes' 1",
        "job.spares": "-1 5000 1.5",
        "job.signals": "'stop' {SIGTERM='sleep'} {SIGKILL='stop'} 3",
        "job.tls_key": "'a.txt'",
        "job.keep_final": "'yes' 1",
        "log.to": "'paper' 3 ['csv','paper'] 'no_module:Log'",
        "log.every": "0 -1 0.5",
        "log.project": "3",
        "log.callbacks": "'no_module:call' 'json' 3",
        "net.rendezvous": "'nowhere' 'dir:' 'etcd://host' 3",
        "net.nodes": "-1 100001 2 0.5 '2:4' '4:2' '2:'",
        "net.min_nodes": "-1 2 0.5",
        "net.last_call_s": "-1 nan inf",
        "net.address": "'10.0.0.1' '0.0.0.0' 3",
        "net.interface": "'lo' 3",
        "net.gather_within_s": "0 -1 nan inf",
        "model.preset": "'llama-2' '' 'gpt'",
        "model.dim": "0 -64 65 1000000000000 nan",
        "model.num_layers": "0 -1 100000 1000000000000",
        "model.num_heads": "0 7 64.0",
        "model.num_kv_heads": "0 3",
        "model.vocab": "0 1000000000000 -256 '256'",
        "model.hidden": "0 1000000000000",
        "model.dropout": "1 1.5 -0.1 nan",
        "model.rope_theta": "0 -1 inf nan",
        "model.rope_factor": "0 0.5 nan",
        "model.norm_eps": "0 -1 inf",
        "model.tied": "'yes' 1",
        "model.hidden_parts": "0 -1 1000000000000",
        "model.vocab_parts": "0 -1 1000000000000",
        "model.factory": "'build' 'no_such_module:build' 'nothing.py:build' 3",
        "model.arguments": "{size=1} 3",
        "model.hf": "'no-folder' 'a.txt' 3",
        "job.source_dir": "'no-folder' 'a.txt' 3",
        "data.factory": "'build' 'no_such_module:build' 'nothing.py:build' 3",
        "data.arguments": "{size=1} 3",
        "data.format": "'csv' 3",
        "data.field": "'body' 3",
        "data.tokenizer": "'bytes' 3",
        "data.end_token": "'</s>' 3",
        "data.truncate": "'middle' 'begin'",
        "data.sources": "[{weight=1}] [{path='no.jsonl'}] [{path='a.txt'}] 'a.txt' 3",
        "data.prepared": "'store' 3",
        "data.cache": "3 true",
        "eval.every_steps": "-1 1.5 nan",
        "eval.micro_batches": "-1 3.5 2",
        **{
            f"eval.{key}": f"{wrong} 3"
            for key, wrong in {
                "factory": "'build'",
                "arguments": "{size=1}",
                "kind": "'images'",
                "path": "'a.txt'",
                "format": "'csv'",
                "field": "'body'",
                "tokenizer": "'bytes'",
                "end_token": "'</s>'",
                "dtype": "'float3'",
                "separator": "-1",
                "truncate": "'middle'",
                "sources": "[{weight=1}]",
                "prepared": "'store'",
            }.items()
        },
        "eval.seed": "-1 nan 1.5",
        "job.allow_other_data": "'yes' 1",
        "data.dtype": "'float3' 'uint16'",
        "data.separator": "-1 0 nan",
        "data.seed": "-1 nan 1.5",
        "parallel.recompute": "'yes' 1",
        "parallel.redundancy": "'yes' 1",
        "parallel.extra_in_flight": "-1 1.5 1000000000000",
        "parallel.devices_per_node": "0 -1 nan 1000000000000",
        "recovery.plan": "'on' true",
        "recovery.plan_search_s": "-1 nan inf",
        "recovery.node_return_s": "-1 nan inf",
        "recovery.restart_nodes": "'yes' 1",
        "recovery.restart_nodes_after_s": "-1 nan inf",
        "recovery.hang_multiple": "0 -1 0.5",
        "recovery.answer_ms": "0 -1 nan",
        "recovery.lost_after_ms": "0 -1 nan",
        "recovery.join_within_s": "-1 nan inf",
        "recovery.feed_delay_ms": "-1 nan",
        "snapshot.mode": "'half' true",
        "snapshot.placement": "'later' 1",
        "snapshot.parity": "'yes' 1",
        "snapshot.persist_every_steps": "-1 1.5 nan",
        "data.kind": "'images' 'tokens'",
        "data.path": "'tokens.bin'",
        "data.seq_len": "0 -1 1000000000000",
        "data.rows": "0 -2 1000000",
        "data.micro_batches": "-1 3.5 1000000000000",
        "data.shortest": "33 -1",
        "parallel.replicas": "0 -1 5000 1000000000",
        "parallel.stages": "0 7 1000000000",
        "parallel.tensor": "0 16",
        "parallel.shard": "0 -1 1000000000",
        "parallel.reshard": "'never' true",
        "parallel.virtual": "0 9",
        "parallel.schedule": "'2f2b' '' 'explicit'",
        "parallel.split": "'odd' [1, 2] '9,9'",
        "parallel.plan": "'no.toml' 'a.txt'",
        "optimizer.learning_rate": "-1 nan inf 1e6",
        "optimizer.betas": "[0.9, 1.5] [0.9] [nan, 0.9] 0.9",
        "optimizer.eps": "0 -1e-8 nan",
        "optimizer.weight_decay": "-5 nan 1000",
        "optimizer.clip_norm": "-1 nan inf",
        "optimizer.warmup_steps": "-5 0.5",
        "optimizer.decay_steps": "-1 nan",
        "optimizer.final_fraction": "-0.1 1.5 nan",
        "optimizer.name": "'Lion' '' 3",
        "optimizer.factory": "'build' 'no_such_module:build' 'nothing.py:build' 3",
        "optimizer.momentum": "-0.1 1 nan 0.9",
        "optimizer.options": "{nesterov=[1]} {no_such_option=1} 3",
        "optimizer.param_groups": "[{pattern=1}] 'all' 3",
        "optimizer.lr_schedule": "'sine' 'no_such_module:rate' 3",
        "optimizer.stable_steps": "-1 0.5 nan 5",
        "precision.compute": "'float16' 'int8' 16",
        "precision.reduce": "'float16' true",
        "precision.moments": "'float8' 8",
        "recovery.mode": "'slow' ''",
        "recovery.non_finite": "'go_on' true",
        "recovery.max_restarts": "-1 nan 0.5",
        "recovery.restart_window_s": "0 -1 nan inf",
        "recovery.heartbeat_ms": "0 -1 1000000000",
        "recovery.hang_floor_ms": "0 -1",
        "recovery.settle_ms": "0 nan",
        "snapshot.every": "-1 0.5 nan",
        "snapshot.max_cost": "-0.1 1.5 nan",
        "snapshot.memory_limit_bytes": "-1 nan",
        "snapshot.persist_every_s": "-1 inf nan",
        "snapshot.keep_latest_k": "-1 nan",
        "snapshot.memory_folder": "'no-folder' 'a.txt' 3",
        "snapshot.strict": "'very' 1",
        "recovery.go_back_tries": "0 -1 nan",
        "snapshot.load_step": "-2 3",
        "detect.on": "'yes' 2",
        "detect.learn_steps": "0 -1 nan",
        "view.port": "-1 65536 'http' 0.5",
        "view.host": "127 true",
        "view.control": "'yes' 1",
        "view.otlp": "'no address' 3",
        "view.trace_every": "-1 0.5 nan",
        "view.trace_limit_bytes": "-1 nan",
        "emulate.unit_ms": "-1 nan inf 'quick'",
        "emulate.profile": "'no.json' 'a.txt'",
        "emulate.speed": "{'n0'=0} {'n0'=-1} {'n0'=0.5} 0.5 {'n0'=nan}",
        "emulate.link_speed": "{'n0>n1'=0} {'n0>n1'=0.5}",
        "emulate.latency_ms": "-1 nan 1",
        "emulate.bandwidth_mb_per_s": "-1 nan 1",
        "emulate.noise": "-0.1 0.5 nan",
        "emulate.attention": "-0.1 1.5 nan",
    }
    return [(key, value) for key, values in table.items() for value in split(values)]


def split(values: str) -> list[str]:
    """At spaces that are in no list and no text."""
    found, depth, quoted = [""], 0, False
    for char in values:
        quoted ^= char == "'"
        depth += (char == "[") - (char == "]")
        if char == " " and not depth and not quoted:
            found.append("")
        else:
            found[-1] += char
    return found


TEXTS = {
    "empty": "",
    "no TOML": "[job\n",
    "a value without a section": "steps = 4",
    "a section twice": JOB + JOB,
    "a key twice": JOB + "steps = 5\n",
    "an unknown section": JOB + "[jobs]\n",
    "an unknown key": JOB + "stepz = 4\n",
    "two names of one key": JOB + "[parallel]\ntp = 1\ntensor = 2\n",
    "a section that is a number": "job = 3\n",
    "no steps": "[model]\ndim = 64\n",
    "a plan and degrees": JOB + "[parallel]\nplan = 'p.toml'\ntensor = 2\n",
    "a certificate without its key": JOB + "tls_cert = 'a.txt'\n",
    "a change that changes nothing": JOB + "[[change]]\nat_step = 2\n",
    "a change without a step": JOB + "[[change]]\ntp = 2\n",
    "a change at step 0": JOB + "[[change]]\nat_step = 0\ntp = 2\n",
    "a change after the end": JOB + "[[change]]\nat_step = 9\ntp = 2\n",
    "changes that go back": JOB
    + "[[change]]\nat_step = 3\ntp = 2\n[[change]]\nat_step = 2\ntp = 1\n",
    "a change that is no list": JOB + "[change]\nat_step = 2\n",
    "a change to nan": JOB + "[[change]]\nat_step = nan\ntp = 2\n",
    "a page at no address": JOB + "[view]\nport = 8000\nhost = 'no such host'\n",
    "a page of another machine": JOB + "[view]\nport = 8000\nhost = '203.0.113.7'\n",
    "an unknown fault": JOB + "[[faults]]\nkind = 'SIGKIL'\n",
    "a fault without a kind": JOB + "[[faults]]\nat_step = 2\n",
    "a fault at a step and a time": JOB
    + "[[faults]]\nkind = 'SLOW'\nat_step = 2\nmean_time_s = 1.0\n",
    "a fault of nan": JOB + "[[faults]]\nkind = 'SLOW'\nfactor = nan\n",
    "a fault at minus one": JOB + "[[faults]]\nkind = 'SLOW'\nat_step = -1\n",
    "a fault that makes quicker": JOB + "[[faults]]\nkind = 'SLOW'\nfactor = 0.5\n",
    "a fault for a stranger": JOB + "[[faults]]\nkind = 'SIGKILL'\ntarget = 'n9.g9'\n",
    "a fault that lasts for steps and cannot": JOB + "[[faults]]\nkind = 'SIGKILL'\nsteps = 3\n",
    "a slow link that is none": JOB + "[[faults]]\nkind = 'SLOW_LINK'\ntarget = 'n0'\n",
    "a slow link that is not emulated": JOB + "[[faults]]\nkind = 'SLOW_LINK'\ntarget = 'n0>n1'\n",
    "a slow link to a stranger": JOB
    + "[emulate]\nunit_ms = 1\n[[faults]]\nkind = 'SLOW_LINK'\ntarget = 'n0>n9'\n",
    "a speed of nothing": JOB + "[emulate]\nunit_ms = 1\nspeed = {r0 = 0.5}\n",
    "a speed of no link": JOB + "[emulate]\nunit_ms = 1\nlink_speed = {'n0>n1.g0' = 0.5}\n",
    "two times of a unit": JOB + "[emulate]\nunit_ms = 1\nprofile = 'a.txt'\n",
    "a product of rates above one": JOB + "[optimizer]\nlearning_rate = 2\nweight_decay = 0.6\n",
    "a token file that is too short": JOB + "[data]\nkind = 'tokens'\npath = 'short.bin'\n",
    "packed tokens without a separator": JOB + "[data]\nkind = 'packed'\npath = 'short.bin'\n",
    "a separator without tokens": JOB + "[data]\nkind = 'packed'\nseparator = 3\n",
    "a separator of other data": JOB + "[data]\nseparator = 3\n",
    "documents longer than a row": JOB + "[data]\nkind = 'packed'\nshortest = 99\n",
    "a token file of another kind": JOB + "[data]\nkind = 'tokens'\npath = 'a.txt'\n",
}

FLAGS = [
    ["--stepz", "4"],
    ["--job.stepz", "4"],
    ["--jobs.steps", "4"],
    ["--job.steps"],
    ["--job.steps", "many"],
    ["--seed", "4"],
    ["--optimizer.clip_norm", "-1"],
    ["--optimizer.clip_norm", "nan"],
    ["--job.host", "0.0.0.0"],
    ["--model.vocab", "1e12"],
    ["four"],
    ["--quiet", "--verbose"],
]

COMMANDS = {
    "no such command": ["trian"],
    "no such option": ["--hepl"],
    "run without a file": ["run"],
    "run of a missing file": ["run", "none.toml"],
    "run of a folder": ["run", "."],
    "run of bytes": ["run", "bytes.toml"],
    "run of a script": ["run", "train.py"],
    "status of nothing": ["status", "none"],
    "status of a folder that is no run": ["status", "."],
    "inject into nothing": ["inject", "none", "SIGKILL"],
    "inject what is no fault": ["inject", ".", "SIGKIL"],
    "inject for a negative time": ["inject", ".", "SLOW", "--duration-s", "-1"],
    "inject a speed-up": ["inject", ".", "SLOW", "--factor", "0.5"],
    "a plan of no stages": ["plan", "show", "--stages", "0", "--micro-batches", "4"],
    "a plan of half a stage": ["plan", "show", "--stages", "0.5"],
    "an unknown schedule": ["plan", "show", "--schedule", "2f2b", "--micro-batches", "4"],
    "a plan that is not there": ["plan", "check", "none.toml"],
    "a plan that is no plan": ["plan", "check", "a.txt"],
    "the difference to nothing": ["plan", "diff", "none.toml", "none.toml"],
    "advice about no model": ["plan", "advise", "--model", "gpt-9", "--devices", "8"],
    "advice for no devices": ["plan", "advise", "--model", "llama-7b", "--devices", "0"],
    "a simulation of no devices": ["simulate", "--devices", "0", "--hours", "1"],
    "a simulation of no time": ["simulate", "--devices", "8", "--hours", "-1"],
    "a simulation of an unknown policy": ["simulate", "--devices", "8", "--policy", "luck"],
    "a simulation of nan hours": ["simulate", "--devices", "8", "--hours", "nan"],
    "a simulation without end": ["simulate", "--devices", "8", "--hours", "inf"],
    "a simulation of no trace": ["simulate", "--trace", "none.csv"],
    "a simulation of a run, from another seed": ["simulate", "--run", "no-run", "--seed", "3"],
    "a failure rate of nan": ["simulate", "--devices", "8", "--hours", "1", "--mtbf", "nan"],
    "a plan of nan seconds": ["plan", "show", "--micro-batches", "4", "--forward", "nan"],
    "a plan of too many micro-batches": ["plan", "show", "--micro-batches", "1000000000000"],
    "a plan of too many replicas": ["plan", "show", "--replicas", "1000000000"],
    "a plan without a profile": ["plan", "show", "--micro-batches", "4", "--profile", "none.json"],
    "a plan that lost a stranger": ["plan", "show", "--micro-batches", "4", "--lost", "r9.s9"],
    "a plan with nan as speed": ["plan", "show", "--micro-batches", "4", "--slow", "r0.s0=nan"],
    "a plan drawn nowhere": ["plan", "show", "--micro-batches", "4", "--out", "/proc/x/y.svg"],
    "a fault of nan times": ["inject", ".", "SLOW", "--factor", "nan"],
    "a look at nothing": ["inspect", "none"],
    "a look at a folder that is no run": ["inspect", "."],
    "memory of nothing": ["clean", "none"],
    "memory of a file": ["clean", "a.txt"],
    "a report of nothing": ["report", "none"],
    "a report of a folder that is no run": ["report", ".", "--json"],
    "the page of nothing": ["view", "none"],
    "the table of nothing": ["top", "none"],
    "a decision of nothing": ["plan", "replay", "none"],
    "a flag without its value": ["run", "job.toml", "--job.steps"],
    "quiet and verbose": ["run", "job.toml", "--quiet", "-v"],
    "a fuzz of minus one seeds": ["fuzz", "--seeds", "-1"],
    "a fuzz of one seed, from another one on": ["fuzz", "--seed", "3", "--start", "4"],
}


def cases() -> list[tuple[str, list[str], str]]:
    """(name, arguments, job file)"""
    found = []
    for key, value in settings():
        section, _, name = key.partition(".")
        line = f"{name} = {value}\n"
        text = f"{JOB}{line}" if section == "job" else f"{JOB}[{section}]\n{line}"
        if key == "job.steps":
            text = f"[job]\n{line}"
        found.append((f"{key} = {value}", ["run", "job.toml"], text))
    found += [(name, ["run", "job.toml"], text) for name, text in TEXTS.items()]
    found += [(" ".join(flags), ["run", "job.toml", *flags], JOB) for flags in FLAGS]
    found += [(name, arguments, JOB) for name, arguments in COMMANDS.items()]
    return found


CASES = cases()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("words\n")
    Path("bytes.toml").write_bytes(b"\xff\xfe\x00")
    Path("train.py").write_text("print('hello')\n")
    write_token_file(Path("short.bin"), np.arange(9, dtype=np.uint16))
    return tmp_path


def everything_in(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def test_there_are_enough_kinds():
    assert len({name for name, _, _ in CASES}) == len(CASES) >= 150


def test_every_setting_has_a_wrong_value():
    tried = {key for key, _ in settings()}
    sections = [f for f in msgspec.structs.fields(JobConfig) if isinstance(f.type, type)]
    for section in sections:
        for field in msgspec.structs.fields(section.type):
            assert f"{section.encode_name}.{field.encode_name}" in tried


@pytest.mark.parametrize(("arguments", "text"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_line_at_once_and_nothing_written(arguments, text, folder, capsys, monkeypatch):
    def start(*args, **kwargs):
        raise AssertionError("something was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    Path("job.toml").write_text(text)
    before, began = everything_in(folder), time.process_time()
    code = main(arguments)
    took_s = time.process_time() - began
    out, err = capsys.readouterr()
    assert code in (1, 2), out + err
    assert (out, err.count("\n")) == ("", 1), err
    assert err.startswith("holdfast: error: ")
    assert took_s < MAX_CPU_S
    assert everything_in(folder) == before


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "run of a missing file",
        "--job.host 0.0.0.0",
        "job.host = '203.0.113.7'",
        "model.dim = nan",
    ],
)
def test_a_process_refuses_it_without_torch(name, folder):
    arguments, text = next(case[1:] for case in CASES if case[0] == name)
    Path("job.toml").write_text(text)
    code = "import sys; from holdfast.cli.main import main; code = main(sys.argv[1:])"
    code += "; print('torch' in sys.modules); sys.exit(code)"
    before = everything_in(folder)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2)
    assert done.stdout == "False\n"
    assert done.stderr.count("\n") == 1
    assert everything_in(folder) == before
