"""What `holdfast view` does."""

import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.run_files import read_run
from holdfast.cli.view_control import JobControl
from holdfast.cli.view_what_if import what_if
from holdfast.errors import HoldfastError
from holdfast.observe.page import make_page
from holdfast.observe.run_directory import write_whole
from holdfast.observe.view_data import RunFeed

if TYPE_CHECKING:
    import uvicorn

MAX_PORT = 65535
SHUTDOWN_S = 1
"""Open pages keep their connection; they are given this long."""
LOOPBACK = ("127.0.0.1", "localhost")


class Served(NamedTuple):
    host: str
    port: int
    control: bool = False
    otlp: str = ""
    with_input: bool = False
    """It ends when the standard input does."""


def write_page(run_dir: Path, out: Path) -> None:
    data = RunFeed(read_run(run_dir), what_if=what_if).alone()
    write_whole(out, make_page(data))
    print(f"{out}: {out.stat().st_size / 1024:.0f} KiB")


def serve_run(run_dir: Path, served: Served) -> None:
    feed = RunFeed(read_run(run_dir), what_if=what_if)
    listener = listen_on(served.host, served.port, "--port")
    try:
        _serve(feed, listener, served)
    finally:
        listener.close()


def listen_on(host: str, port: int, name: str) -> socket.socket:
    """`name`: what the user calls the port."""
    if not 0 <= port <= MAX_PORT:
        raise HoldfastError(f"{name} {port}: between 0 and {MAX_PORT}")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise HoldfastError(
            f"cannot listen on {host}:{port}: {error.strerror}; another {name} may be free"
        ) from None


def page_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _serve(feed: RunFeed, listener: socket.socket, served: Served) -> None:
    try:
        import uvicorn

        from holdfast.observe.view_server import make_app
    except ImportError as error:
        raise HoldfastError(
            f"the page needs {error.name}: install holdfast[view], or use --out"
        ) from None
    from holdfast.observe.incident_spans import open_exporter

    app = make_app(
        feed,
        control=JobControl(feed.run_dir) if served.control else None,
        exporter=open_exporter(served.otlp) if served.otlp else None,
        hosts=LOOPBACK if served.host in LOOPBACK else ("*",),
    )
    print(f"{page_url(served.host, listener.getsockname()[1])}  (Ctrl-C ends it)", flush=True)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_S
    )
    server = uvicorn.Server(config)
    if served.with_input:
        threading.Thread(target=_end_with_input, args=[server], daemon=True, name="input").start()
    server.run(sockets=[listener])


def _end_with_input(server: "uvicorn.Server") -> None:
    while sys.stdin.buffer.read(4096):
        pass
    server.should_exit = True
