"""How long the coordinator waits between two looks, on a clock that jumps."""

import asyncio
import selectors

import pytest

from holdfast.runtime.coordinator.poll_interval import CALM_S, QUICK_S, PollInterval


class JumpingSelector(selectors.DefaultSelector):
    """Nothing to do for a while: that while is over at once."""

    now = 0.0

    def select(self, timeout=None):
        self.now += timeout or 0.0
        return super().select(0)


def jumping_loop():
    selector = JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    return loop


@pytest.fixture
def loop():
    with asyncio.Runner(loop_factory=jumping_loop) as runner:
        yield runner


def waited(runner, *, is_calm, stirred_s=None):
    async def wait():
        loop, pulse = asyncio.get_running_loop(), PollInterval()
        if stirred_s is not None:
            loop.call_later(stirred_s, pulse.stir)
        begin = loop.time()
        await pulse.wait(is_calm=is_calm)
        return loop.time() - begin

    return runner.run(wait())


def test_looks_are_rare_while_all_train(loop):
    assert waited(loop, is_calm=True) == pytest.approx(CALM_S)
    assert waited(loop, is_calm=False) == pytest.approx(QUICK_S)


def test_whatever_happens_brings_the_next_look_forward(loop):
    assert waited(loop, is_calm=True, stirred_s=0.01) == pytest.approx(0.01 + QUICK_S)


def test_what_happens_during_a_look_makes_the_next_one_quick(loop):
    assert waited(loop, is_calm=True, stirred_s=0.0) == pytest.approx(QUICK_S)
