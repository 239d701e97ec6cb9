import asyncio
import socket

from holdfast.observe.run_clock import RunClock
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.job_sections import JobSection
from holdfast.runtime.launch.launcher_messages import (
    BY_LAUNCHER,
    START,
    CoordinatorSpec,
    Ending,
    LauncherLink,
    NodeEnded,
    StartOf,
    StopRequest,
    Wrote,
)
from holdfast.runtime.wire.frames import Unpacker, pack


def test_what_the_launcher_says_and_hears():
    async def main():
        heard, gone = asyncio.Queue(), asyncio.Event()
        link = LauncherLink(heard.put_nowait, gone.set)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=theirs)
        ours.sendall(
            pack(StopRequest(signal="SIGINT"))
            + pack(NodeEnded(node="n0", agent="a", how="it died"))
        )
        assert await heard.get() == StopRequest(signal="SIGINT")
        assert await heard.get() == NodeEnded(node="n0", agent="a", how="it died")
        sent = [Wrote(journal=3, metrics=4), Ending(outcome="finished", reason="done")]
        for message in sent:
            link.send(message)
        assert list(Unpacker(BY_LAUNCHER).feed(ours.recv(1000))) == sent
        ours.close()
        await gone.wait()

    asyncio.run(main())


def test_a_start_travels():
    spec = CoordinatorSpec(
        run_dir="x",
        secret="s",
        config=JobConfig(job=JobSection(steps=1)),
        plans=(),
        backend="gloo",
        clock=RunClock(0.0, 0.0),
    )
    assert list(Unpacker(START).feed(pack(StartOf(spec=spec)))) == [StartOf(spec=spec)]
