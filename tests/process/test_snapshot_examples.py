"""The snapshotter in other people's loops: killed in the middle, they go on from memory."""

import re
import signal
import socket
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
    cluster: Cluster, script: str, folder: Path, memory: str, *options: str
) -> tuple[list[object], str]:
    """Both ranks: what came back from them, and what they said."""
    said = [folder / f"said-{rank}" for rank in range(2)]
    given = ("--steps", str(NUM_STEPS), "--memory", str(folder / memory), *options)
    port = free_port()
    answers = cluster.run(
        run_example,
        [(EXAMPLES / script, rank, port, given, said[rank]) for rank in range(2)],
        may_die=(0, 1),
    )
    return answers, "".join(path.read_text() for path in said)


def losses(said: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"step (\d+) loss (\S+)", said)}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("script", ["snapshot_fsdp2.py", "snapshot_pipelining.py"])
def test_a_killed_loop_goes_on_from_memory(cluster, script: str, tmp_path: Path) -> None:
    answers, said = run(cluster, script, tmp_path, "undisturbed")
    assert answers == [None, None]
    expected = losses(said)
    assert sorted(expected) == list(range(NUM_STEPS))

    answers, said = run(cluster, script, tmp_path, "memory", "--die-at", "5")
    assert answers == [Died(-signal.SIGKILL)] * 2
    before = losses(said)

    answers, said = run(cluster, script, tmp_path, "memory")
    assert answers == [None, None]
    start = int(re.findall(r"starts at step (\d+)", said)[0])
    after = losses(said)
    # State of the last step or two may not have been whole anywhere else than in the loop.
    assert 3 <= start <= 5
    assert sorted(after) == list(range(start, NUM_STEPS))
    assert before | after == expected
    # A loop that ends gives its memory back.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said-0", "said-1"]
