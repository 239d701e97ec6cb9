"""What `holdfast view` does."""

import socket
from pathlib import Path

from holdfast.cli.run_files import read_run
from holdfast.errors import HoldfastError
from holdfast.observe.page import make_page
from holdfast.observe.run_directory import write_whole
from holdfast.observe.view_data import POINTS_ALONE, RunFeed

MAX_PORT = 65535
SHUTDOWN_S = 1
"""Open pages keep their connection; they are given this long."""


def write_page(run_dir: Path, out: Path) -> None:
    data = RunFeed(read_run(run_dir)).all(POINTS_ALONE)
    write_whole(out, make_page(data))
    print(f"{out}: {out.stat().st_size / 1024:.0f} KiB")


def serve_run(run_dir: Path, *, host: str, port: int) -> None:
    feed = RunFeed(read_run(run_dir))
    listener = _listen(host, port)
    try:
        _serve(feed, listener, host)
    finally:
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= MAX_PORT:
        raise HoldfastError(f"--port {port}: between 0 and {MAX_PORT}")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise HoldfastError(
            f"cannot listen on {host}:{port}: {error.strerror}; another --port may be free"
        ) from None


def _serve(feed: RunFeed, listener: socket.socket, host: str) -> None:
    try:
        import uvicorn

        from holdfast.observe.view_server import make_app
    except ImportError as error:
        raise HoldfastError(
            f"the page needs {error.name}: install holdfast[view], or use --out"
        ) from None
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
    config = uvicorn.Config(
        make_app(feed),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    uvicorn.Server(config).run(sockets=[listener])
