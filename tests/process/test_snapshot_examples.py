"""The snapshotter in other people's loops: killed in the middle, they go on from memory."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster import Cluster, Died
from support.example_work import run_example

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_STEPS = 8


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run(
    cluster: Cluster, script: str, folder: Path, memory: str, *options: str, size: int = 2
) -> tuple[list[object], str]:
    """All ranks: what came back from them, and what they said."""
    said = [folder / f"said-{rank}" for rank in range(size)]
    given = ("--steps", str(NUM_STEPS), "--memory", str(folder / memory), *options)
    port = free_port()
    answers = cluster.run(
        run_example,
        [(EXAMPLES / script, rank, size, port, given, said[rank]) for rank in range(size)],
        may_die=range(size),
    )
    return answers, "".join(path.read_text() for path in said)


def losses(said: str) -> dict[int, str]:
    return {
        int(step): loss for step, loss in re.findall(r"step (\d+) (?:loss|gradient) (\S+)", said)
    }


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "pipelining"])
def test_a_killed_loop_goes_on_from_memory(cluster, name: str, tmp_path: Path) -> None:
    script = f"snapshot_{name}.py"
    answers, said = run(cluster, script, tmp_path, "undisturbed", "--fresh")
    assert answers == [None, None]
    expected = losses(said)
    assert sorted(expected) == list(range(NUM_STEPS))

    answers, said = run(cluster, script, tmp_path, "memory", "--fresh", "--die-at", "5")
    assert answers == [Died(-signal.SIGKILL)] * 2
    before = losses(said)

    answers, said = run(cluster, script, tmp_path, "memory")
    assert answers == [None, None]
    start = int(re.findall(r"starts at step (\d+)", said)[0])
    after = losses(said)
    # A version that the ranks could not agree on in time, as steps take a millisecond, is given up.
    assert 1 <= start <= 5
    assert sorted(after) == list(range(start, NUM_STEPS))
    assert before | after == expected
    # A loop that ends gives its memory back.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said-0", "said-1"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(250)
def test_a_killed_trainer_goes_on_from_memory(cluster, tmp_path: Path) -> None:
    script = "snapshot_trainer.py"
    answers, said = run(cluster, script, tmp_path, "undisturbed", "--fresh", size=1)
    expected = losses(said)
    assert (answers, sorted(expected)) == ([None], list(range(NUM_STEPS)))
    answers, _ = run(cluster, script, tmp_path, "memory", "--fresh", "--die-at", "5", size=1)
    assert answers == [Died(-signal.SIGKILL)]
    answers, said = run(cluster, script, tmp_path, "memory", size=1)
    assert answers == [None]
    start = int(re.findall(r"starts at step (\d+)", said)[0])
    assert 1 <= start <= 5
    after = losses(said)
    assert sorted(after) == list(range(start, NUM_STEPS))
    assert after == {step: loss for step, loss in expected.items() if step >= start}
    assert [path.name for path in tmp_path.iterdir()] == ["said-0"]


def torchrun(folder: Path, size: int, *options: str) -> tuple[int, str]:
    given = ["--steps", str(NUM_STEPS), "--memory", str(folder / "memory"), *options]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={size}", EXAMPLES / "snapshot_fsdp2.py", *given],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.process
@pytest.mark.chaos
@pytest.mark.timeout(250)
def test_torchrun_is_launched_again(tmp_path: Path) -> None:
    """As docs/snapshotter.md has it: a loop around torchrun, which itself restarts nothing."""
    code, _ = torchrun(tmp_path, 2, "--fresh", "--die-at", "5")
    assert code != 0
    code, said = torchrun(tmp_path, 1)
    assert code == 0
    start = int(re.findall(r"starts at step (\d+)", said)[0])
    assert 1 <= start <= 5
    assert sorted(losses(said)) == list(range(start, NUM_STEPS))
    assert list(tmp_path.iterdir()) == []
