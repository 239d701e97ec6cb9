"""Jobs that take turns through their data, and times from the stamps of a record."""

import json
import threading

import pytest


def test_workers_wait_for_their_block(load_bench, tmp_path):
    turns = load_bench("_host_turns")
    job = turns.GatedJob(tmp_path / "gate", 2)
    given = {"seq_len": 4, "vocab": 16, "items_before": 1, "items_per_block": 2}
    workers = [turns.GatedData(gate=str(tmp_path / "gate"), **given) for _ in range(2)]
    read: list[int] = []

    def train(data):
        for number in range(6):
            data[number]
            read.append(number)

    threads = [threading.Thread(target=train, args=(data,)) for data in workers]
    for thread in threads:
        thread.start()
    job.wait_ready()
    assert read == [0, 0]
    job.block()
    assert sorted(read) == [0, 0, 1, 1, 2, 2]
    job.free()
    for thread in threads:
        thread.join()
    assert len(read) == 12


@pytest.fixture
def record(load_bench, tmp_path):
    def write(name, *lines):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def at(second):
        return f"2026-01-01T00:00:0{second}.000+00:00"

    write(
        "journal.jsonl",
        {"time": at(1), "event": "recovered", "epoch": 2, "lost": ["n0.g0"]},
        {"time": at(4), "event": "recovered", "epoch": 3, "lost": ["n1.g0"]},
        {"time": at(7), "event": "plan_changed", "epoch": 4, "joining": ["n1.g0"]},
        {"time": at(8), "event": "coordinator_started", "term": 2},
    )
    steps = [(0, 1, 0), (1, 2, 2), (2, 2, 3), (3, 3, 5), (4, 4, 8)]
    write("metrics.jsonl", *({"step": s, "epoch": e, "time": at(t)} for s, e, t in steps))
    return load_bench("_host_strikes").Record(tmp_path)


def test_times_are_read_from_the_stamps(record):
    struck = 1767225603.0  # second 3
    assert record.next_commit_s(struck, "n1.g0") == 2.0
    assert record.joined_s(struck, "n1.g0") == 4.0
    assert record.successor_s(struck) == 5.0
