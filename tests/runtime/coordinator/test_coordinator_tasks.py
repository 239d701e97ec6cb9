"""A task that fails ends the process; one that is done or cancelled does not."""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.runtime.coordinator.coordinator_tasks import CoordinatorTasks


def run(story: Callable[[CoordinatorTasks], Awaitable[None]]) -> list[BaseException]:
    errors: list[BaseException] = []

    async def live() -> None:
        background = CoordinatorTasks(errors.append)
        await story(background)
        await asyncio.sleep(0)
        background.cancel()

    asyncio.run(live())
    return errors


async def nothing() -> None:
    pass


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ZeroDivisionError("a mistake")


def test_an_exception_is_passed_on() -> None:
    async def story(background: CoordinatorTasks) -> None:
        await asyncio.wait([background.start(fail())])

    assert [str(error) for error in run(story)] == ["a mistake"]


def test_an_end_is_none() -> None:
    async def story(background: CoordinatorTasks) -> None:
        waiting = background.start(wait_for_ever())
        await background.start(nothing())
        background.cancel()
        await asyncio.wait([waiting])

    assert run(story) == []
