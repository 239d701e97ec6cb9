from holdfast.observe.follow import Follower
from holdfast.observe.journal import Journal
from support.job_events import CHANGED, STARTED, step


def test_events_come_once_and_in_their_order(tmp_path):
    paths = tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl"
    follower = Follower(*paths)
    assert follower.read() == []
    sizes = []
    with Journal(*paths) as journal:
        for event in (STARTED, step(0, 1.0), CHANGED, step(1, 1.0)):
            journal.write(event)
            sizes.append(journal.sizes)
    found = [follower.read(*size) for size in sizes]
    assert found == [[STARTED], [step(0, 1.0)], [CHANGED], [step(1, 1.0)]]
    assert follower.read() == []


def test_a_torn_line_is_read_when_it_is_whole(tmp_path):
    paths = tmp_path / "journal.jsonl", tmp_path / "metrics.jsonl"
    with Journal(*paths) as journal:
        journal.write(STARTED)
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-5])
    follower = Follower(*paths)
    assert follower.read() == []
    paths[0].write_bytes(whole)
    assert follower.read() == [STARTED]
