"""As few threads as keep up, and never more at work than that."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.snapshot.copying.checksum_pool import MOST, USABLE, ChecksumPool, threads_needed

DEADLINE_S = 20


@given(num_bytes=st.integers(1, 10**12), rate=st.floats(1e6, 1e11), interval_s=st.floats(1e-3, 1e3))
def test_the_fewest_that_keep_up(num_bytes, rate, interval_s):
    found = threads_needed(num_bytes, rate, interval_s)

    def keeps_up(threads):
        return threads * rate * USABLE * interval_s >= num_bytes * (1 - 1e-9)

    assert found == MOST or keeps_up(found)
    assert found == 1 or not threads_needed(num_bytes, rate, interval_s * 1.001) > found
    assert found == 1 or (found - 1) * rate * USABLE * interval_s < num_bytes


@pytest.mark.parametrize(("rate", "interval_s"), [(0.0, 1.0), (1e9, 0.0)])
def test_all_of_them_where_something_is_unknown(rate, interval_s):
    assert threads_needed(1, rate, interval_s) == MOST


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_limit_follows_from_what_was_seen():
    clock = Clock()
    clock.now_s = 1.0
    pool = ChecksumPool(clock)
    pool.begin(100)
    assert pool.limit == MOST, "nothing is known of the first version"

    def check() -> None:
        clock.now_s += 1.0

    pool.submit(100, check).result(DEADLINE_S)  # 100 bytes a second
    clock.now_s = 11.0
    pool.begin(100)
    assert pool.limit == 1
    clock.now_s = 12.0
    pool.begin(200)
    assert pool.limit == 3, "200 bytes within three quarters of a second"
    clock.now_s = 1000.0
    pool.begin(200)
    assert pool.limit == 3, "after a pause the next version may come as soon as before"
    pool.close()


def test_no_more_are_at_work_than_the_limit_says():
    pool = ChecksumPool()
    pool.limit = 2
    lock, begun, go_on = threading.Lock(), threading.Semaphore(0), threading.Event()
    running, most = 0, 0

    def check() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        begun.release()
        assert go_on.wait(DEADLINE_S)
        with lock:
            running -= 1

    futures = [pool.submit(1, check) for _ in range(2 * MOST)]
    assert all(begun.acquire(timeout=DEADLINE_S) for _ in range(2))
    go_on.set()
    for future in futures:
        future.result(DEADLINE_S)
    pool.close()
    assert most == 2


def test_an_error_is_told_and_the_next_one_has_its_turn():
    pool = ChecksumPool()
    pool.limit = 1

    def fail() -> None:
        raise ValueError("spoiled")

    failed, after = pool.submit(1, fail), pool.submit(1, lambda: None)
    with pytest.raises(ValueError, match="spoiled"):
        failed.result(DEADLINE_S)
    after.result(DEADLINE_S)
    pool.close()
