"""The batch script: what it asks Slurm for, and how its shell ends."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.launch.signals import DEFAULT_ACTIONS
from holdfast.submit.request import SubmitRequest, choose_stop_signal, read_options
from holdfast.submit.slurm import EXIT_NO_REQUEUE, SIGNAL_NUMBERS, batch_script


def make_request(**fields: object) -> SubmitRequest:
    known = {
        "name": "big",
        "num_nodes": 4,
        "devices_per_node": 1,
        "program": ("python", "-m", "holdfast"),
        "job_file": "/home/a b/job.toml",
        "folder": "/home/a b",
    }
    return SubmitRequest(**(known | fields))


def options_of(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH --")]
    pairs = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    return {name: value for name, _, value in pairs}


def test_it_asks_for_hosts_a_warning_and_a_requeue():
    found = options_of(batch_script(make_request(num_spare_hosts=1, grace_s=100)))
    assert found["nodes"] == "5"
    assert found["signal"] == "B:USR1@120"
    assert {"requeue", "no-kill"} <= found.keys()
    assert found["open-mode"] == "append"
    assert "gpus-per-node" not in found


def test_devices_are_for_the_agents():
    text = batch_script(make_request(is_cuda=True, devices_per_node=8))
    assert options_of(text)["gpus-per-node"] == "8"
    assert text.count("--gpus-per-node=0") == 1  # the launcher


def test_what_the_user_asks_for_goes_first():
    text = batch_script(make_request(options=read_options(["nodes=3-6", "--exclusive"])))
    assert options_of(text)["nodes"] == "3-6"
    assert "#SBATCH --exclusive\n" in text
    assert '--nodes="$SLURM_NNODES"' in text


def test_a_lost_host_ends_neither_step():
    steps = [line for line in batch_script(make_request()).splitlines() if "srun" in line]
    assert len(steps) == 2
    assert all("--no-kill --kill-on-bad-exit=0" in line for line in steps)


def test_the_place_is_the_same_after_a_requeue():
    text = batch_script(make_request())
    assert "run_dir='/home/a b/runs/big-'\"$SLURM_JOB_ID\"\n" in text
    assert "rendezvous=dir:'/home/a b/runs/big-'\"$SLURM_JOB_ID\"\n" in text
    other = batch_script(make_request(rendezvous="dir:/shared/x", run_dir="/shared/run"))
    assert "run_dir=/shared/run\nrendezvous=dir:/shared/x\n" in other


def test_agents_get_the_network_and_stay_for_the_checkpoint():
    text = batch_script(
        make_request(interface="ib0", tls_cert="/c.pem", tls_key="/k.pem", grace_s=60)
    )
    assert "--leave-after-s 70" in text
    assert "--interface ib0 --tls-cert /c.pem --tls-key /k.pem" in text


def test_which_signal_is_a_stop():
    assert choose_stop_signal(DEFAULT_ACTIONS) == "SIGUSR1"
    assert choose_stop_signal({**DEFAULT_ACTIONS, "SIGUSR1": "checkpoint"}) == "SIGUSR2"
    with pytest.raises(HoldfastError, match="none of SIGUSR1"):
        choose_stop_signal(dict.fromkeys(DEFAULT_ACTIONS, "ignore"))
    assert "--signal=B:USR2@" in batch_script(make_request(stop_signal="SIGUSR2"))


def test_the_numbers_of_signals_are_those_of_the_system():
    assert {name: signal.Signals[name].value for name in SIGNAL_NUMBERS} == SIGNAL_NUMBERS


@pytest.mark.parametrize("text", ["", "=4", "a b=3", "x=1\n#SBATCH --y"])
def test_options_that_are_none(text):
    with pytest.raises(HoldfastError, match="expected name=value"):
        read_options([text])


SRUN = """#!/bin/bash
# The step of the launcher ends as the test says, that of agents at once.
case "$*" in *" run "*) ;; *) exit 0 ;; esac
trap 'exit 138' USR1
trap 'exit 143' TERM
touch "$TEST_FOLDER/started"
printf '%s' "$TEST_METRICS" >> "$TEST_FOLDER/run/metrics.jsonl"
[ "$TEST_CODE" = wait ] || exit "$TEST_CODE"
for _ in $(seq 600); do sleep 0.05; done
"""
STOP = '#!/bin/bash\necho "$@" >> "$TEST_FOLDER/python"\n'
SCONTROL = '#!/bin/bash\necho "$@" >> "$TEST_FOLDER/scontrol"\n'


class Script:
    """The script in a real shell, with commands of Slurm that the test controls."""

    def __init__(self, folder: Path, code: str, metrics: str = "") -> None:
        (folder / "bin").mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", STOP)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        request = make_request(rendezvous=f"dir:{folder}/run", folder=str(folder))
        self.folder = folder
        self._process = subprocess.Popen(
            ["bash", "-c", batch_script(request)],
            env={
                **os.environ,
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "SLURM_JOB_ID": "7",
                "SLURM_NNODES": "4",
                "SLURMD_NODENAME": "h0",
                "TEST_FOLDER": str(folder),
                "TEST_CODE": code,
                "TEST_METRICS": metrics,
            },
            stdout=subprocess.DEVNULL,
        )

    def signal(self, number: int) -> None:
        deadline = time.monotonic() + 20
        while not (self.folder / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self._process.send_signal(number)

    def end(self) -> tuple[int, bool]:
        """The exit code, and whether the job is queued again."""
        try:
            code = self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
        path = self.folder / "scontrol"
        return code, path.is_file() and path.read_text() == "requeue 7\n"


STEP = '{"step": 4, "loss": 1.5}\n'


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "metrics", "end"),
    [
        ("0", "", (0, False)),
        ("1", "", (EXIT_NO_REQUEUE, False)),
        ("1", STEP, (1, True)),
        ("137", STEP, (137, True)),
        ("137", "", (EXIT_NO_REQUEUE, False)),
        ("93", STEP, (EXIT_NO_REQUEUE, False)),
        ("143", "", (143, True)),  # the steps alone had SIGTERM: preempted, and done in time
    ],
)
def test_how_it_ends(tmp_path, code, metrics, end):
    assert Script(tmp_path, code, metrics).end() == end
    # A launcher that was killed leaves a job that lives.
    assert (tmp_path / "python").is_file() == (code == "137")


@pytest.mark.process
def test_the_warning_reaches_the_launcher_and_requeues(tmp_path):
    script = Script(tmp_path, "wait")
    script.signal(signal.SIGUSR1)
    assert script.end() == (138, True)


@pytest.mark.process
def test_an_end_by_slurm_is_left_to_slurm(tmp_path):
    """As of scancel: the script and the steps have SIGTERM."""
    script = Script(tmp_path, "wait")
    script.signal(signal.SIGTERM)
    script.signal(signal.SIGUSR1)  # so that the launcher ends
    assert script.end() == (138, False)
