"""The snapshotter in other people's loops: killed in the middle, they go on from memory."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_STEPS = 8
DEADLINE_S = 50


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run(script: str, memory: Path, *options: str) -> tuple[list[int], str]:
    """Both ranks; their exit codes and what they said."""
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RES_OPTIONS": "timeout:1 attempts:1",
    }
    command = [sys.executable, str(EXAMPLES / script), "--steps", str(NUM_STEPS)]
    ranks = [
        subprocess.Popen(
            [*command, "--memory", str(memory), *options],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=DEADLINE_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [rank.returncode for rank in ranks], "".join(said)


def losses(said: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"step (\d+) loss (\S+)", said)}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("script", ["snapshot_fsdp2.py", "snapshot_pipelining.py"])
def test_a_killed_loop_goes_on_from_memory(script: str, tmp_path: Path) -> None:
    codes, said = run(script, tmp_path / "undisturbed")
    assert codes == [0, 0], said
    expected = losses(said)
    assert sorted(expected) == list(range(NUM_STEPS))

    codes, said = run(script, tmp_path / "memory", "--die-at", "5")
    assert codes == [-signal.SIGKILL] * 2, said
    before = losses(said)

    codes, said = run(script, tmp_path / "memory")
    assert codes == [0, 0], said
    start = int(re.findall(r"starts at step (\d+)", said)[0])
    after = losses(said)
    # The state of the last step or two may not have been whole anywhere else than in the loop.
    assert 3 <= start <= 5
    assert sorted(after) == list(range(start, NUM_STEPS))
    assert before | after == expected
    assert list(tmp_path.iterdir()) == []  # a loop that ends gives its memory back
