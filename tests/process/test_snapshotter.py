"""FSDP2 and DDP loops, killed at any moment and relaunched on another number of ranks: they go on
equal, from whatever is left, or say why not.
"""

import random
import socket
from pathlib import Path

import pytest

from support.cluster import Cluster, Died
from support.loop_work import PHASES, Ended, LoopRun, damage_memory, run_loop

pytestmark = [pytest.mark.process, pytest.mark.slow]

NODES = {4: ("a", "a", "b", "b"), 2: ("a", "b"), 3: ("a", "b", "b")}
NUM_STEPS = 30
DISK = {"persist_every": 5, "keep_latest_k": 3}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(cluster: Cluster, folder: Path, size: int, **given) -> list:
    """What all ranks had to say."""
    run = LoopRun(folder, free_port(), NODES[size], **{"num_steps": NUM_STEPS} | given)
    ranks = range(size)
    return cluster.run(run_loop, [(run, rank) for rank in ranks], may_die=ranks, deadline_s=100)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, cluster) -> dict[int, float]:
    """The losses of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ends = launch(cluster, folder, 2, fresh=True)
    return ends[0].losses


def losses(folder: Path) -> dict[int, float]:
    """As the first rank has seen them, over all starts; a step done again counts as the last."""
    lines = (folder / "losses-0").read_text().splitlines()
    return {int(step): float(loss) for step, loss in (line.split() for line in lines)}


def check_equal(found: dict[int, float], expected: dict[int, float]) -> None:
    assert found.keys() == expected.keys()
    for step, loss in found.items():
        assert loss == pytest.approx(expected[step], rel=1e-9), f"step {step}"


def ended_well(ends: list) -> bool:
    return all(isinstance(end, Ended) and not end.error for end in ends)


@pytest.mark.timeout(300)
def test_a_killed_loop_goes_on_with_other_ranks(cluster, tmp_path, expected) -> None:
    ends = launch(cluster, tmp_path, 4, fresh=True, die=(2, 9, "update"))
    assert ends == [Died(-9)] * 4

    ends = launch(cluster, tmp_path, 2, die=(1, 17, "backward"))
    assert ends == [Died(-9)] * 2

    for path in tmp_path.glob("memory.b.*"):
        path.unlink()
    ends = launch(cluster, tmp_path, 3)
    assert ended_well(ends), ends
    assert 9 <= ends[0].first <= 17
    origins = {origin for end in ends for origin in end.origins}
    assert origins <= {"local memory", "peer memory", "parity"}
    check_equal(losses(tmp_path), expected)


@pytest.mark.timeout(300)
def test_with_all_memory_gone_disk_is_next_and_then_an_error(cluster, tmp_path, expected) -> None:
    disk = tmp_path / "disk"
    options = DISK | {"disk": disk}
    assert launch(cluster, tmp_path, 4, fresh=True, die=(0, 14, "snapshot"), options=options) == (
        [Died(-9)] * 4
    )
    for path in tmp_path.glob("memory.*"):
        path.unlink()
    ends = launch(cluster, tmp_path, 3, options=options)
    assert ended_well(ends), ends
    assert ends[0].first in (5, 10)
    assert ends[0].origins == ("storage",)
    check_equal(losses(tmp_path), expected)
    for path in (*tmp_path.glob("memory.*"), *disk.glob("step-*/.metadata")):
        path.unlink()
    ends = launch(cluster, tmp_path, 2, options=options)
    assert all("there is no state to go on from" in end.error for end in ends)
    assert all(".metadata is missing" in end.error for end in ends)


@pytest.mark.timeout(300)
def test_replicas_on_two_nodes_have_parity(cluster, tmp_path, expected) -> None:
    ddp = {"is_sharded": False}
    patient = {"die": (3, 12, "snapshot"), "is_patient": True, "min_copied": 9}
    ends = launch(cluster, tmp_path, 4, fresh=True, **patient, **ddp)
    assert ends == [Died(-9)] * 4
    for path in tmp_path.glob("memory.a.*"):
        path.unlink()
    ends = launch(cluster, tmp_path, 2, **ddp)
    assert ended_well(ends), ends
    assert ends[0].first >= 9
    assert "parity" in ends[0].origins
    check_equal(losses(tmp_path), expected)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_twenty_kills(cluster, tmp_path) -> None:
    """Every kill comes at a moment drawn at random, once peers have a copy; before the next start,
    nothing happens, or a node loses its memory, or a byte is damaged. That is always survived.
    """
    num_steps, seed = 200, random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    (tmp_path / "undisturbed").mkdir()
    expected = launch(cluster, tmp_path / "undisturbed", 2, fresh=True, num_steps=num_steps)
    options = DISK | {"disk": tmp_path / "disk"}
    given = {"options": options, "num_steps": num_steps, "is_patient": True}
    first = 0
    for kill in range(20):
        size = chance.choice([4, 2, 3])
        die = (chance.randrange(size), first + chance.randrange(1, 6), chance.choice(PHASES))
        ends = launch(cluster, tmp_path, size, fresh=kill == 0, die=die, **given)
        assert ends == [Died(-9)] * size, (kill, size, die)
        first = max(losses(tmp_path))
        disturb(tmp_path, chance)
    ends = launch(cluster, tmp_path, 4, **given)
    assert ended_well(ends), ends
    check_equal(losses(tmp_path), expected[0].losses)


def disturb(folder: Path, chance: random.Random) -> None:
    what = chance.choice(["nothing", "node", "byte"])
    if what == "node":
        node = chance.choice(["a", "b"])
        for path in folder.glob(f"memory.{node}.*"):
            path.unlink()
    elif what == "byte":
        damage_memory(folder, chance)
