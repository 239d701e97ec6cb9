"""When the coordinator looks round: often while something is under way, seldom while all train.

Every look costs a wake-up on a machine whose processors belong to the training. While everybody
trains there is nothing to find that does not come as a message, but for hangs and the times of
faults on purpose, which are no matter of milliseconds. Any message that may change something, and
only that, brings the quick looks back.
"""

import asyncio

QUICK_S = 0.02
CALM_S = 0.2


class PollInterval:
    def __init__(self) -> None:
        self._stirred = asyncio.Event()

    def stir(self) -> None:
        """Something has happened: look again after the shorter time."""
        self._stirred.set()

    async def wait(self, *, is_calm: bool) -> None:
        """Until the next look is due."""
        if is_calm:
            try:
                async with asyncio.timeout(CALM_S):
                    await self._stirred.wait()
            except TimeoutError:
                return
        self._stirred.clear()
        await asyncio.sleep(QUICK_S)
