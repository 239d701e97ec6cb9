"""An agent's service for other hosts, on a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.runtime.agent.peer_service import PeerService
from holdfast.runtime.wire.host_messages import Peer
from holdfast.runtime.wire.tls import NO_TLS, TlsFiles
from holdfast.snapshot.memory.sources import NodeMemory

SECRET = "a secret of sixteen or more"


@contextmanager
def serving(memory: Callable[[], NodeMemory], tls: TlsFiles = NO_TLS) -> Iterator[Peer]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    service = PeerService(SECRET, memory, tls)
    try:
        yield asyncio.run_coroutine_threadsafe(service.start("127.0.0.1"), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(_end(service), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(service: PeerService) -> None:
    service.close()
    await asyncio.sleep(0)
