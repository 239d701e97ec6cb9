"""The web server of `holdfast view`: one run, no requests to other machines.

It only reads, unless it is given a `ViewControl`; then requests that carry the job's secret may
inject faults and stop the job. On a loopback address it answers only to requests that name that
address: a page from elsewhere cannot reach it through a name of its own.

/             the page; it listens to /api/events
/api/run      everything as JSON
/api/points   steps of a stretch of time, thinned out
/api/events   server-sent events: `all` once, then `news`, `end` when the job has ended
/api/step     the last step as it was measured, beside its prediction
/api/inject   POST, with control: {"kind": ..., "target": ...}
/api/stop     POST, with control: stop with a checkpoint
/plan/N.svg   the plan of epoch N as a timeline
/metrics      for Prometheus
/healthz      the server answers
/readyz       the job trains; 503 and the reason if it does not
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.errors import HoldfastError
from holdfast.observe.incident_spans import IncidentExporter
from holdfast.observe.page import make_page
from holdfast.observe.prometheus import metrics_text
from holdfast.observe.run.summary import present, state_of
from holdfast.observe.view_data import NewsReader, RunFeed

TICK_S = 0.25
PING_S = 15.0
TRAINING = ("training", "recovering")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src 'self' data:; connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
EXPORT_S = 1.0
READ_ONLY = "this page only reads; `holdfast view --control`, or [view] control, allows more"

Answer = Callable[[Request], Awaitable[Response]]


def _json(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, HEADERS, "application/json")


class ViewControl(Protocol):
    """What may be done to the job from the page."""

    @property
    def kinds(self) -> Sequence[str]:
        """Of faults."""

    def allows(self, secret: str) -> bool: ...

    def inject(self, kind: str, target: str) -> str:
        """What was done, in a line."""

    def stop(self) -> str: ...


def make_app(
    feed: RunFeed,
    *,
    tick_s: float = TICK_S,
    control: ViewControl | None = None,
    exporter: IncidentExporter | None = None,
    hosts: Sequence[str] = ("*",),
) -> Starlette:
    """`hosts`: names under which it may be asked."""

    async def act(request: Request) -> Response:
        return await _act(request, control)

    answers = _answers(feed, tick_s, [] if control is None else list(control.kinds))
    acts = [Route(path, act, methods=["POST"]) for path in ("/api/inject", "/api/stop")]
    return Starlette(
        routes=[*(Route(path, answer) for path, answer in answers.items()), *acts],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        lifespan=_exporting(feed, exporter),
    )


def _answers(feed: RunFeed, tick_s: float, kinds: list[str]) -> dict[str, Answer]:
    """What is shown, by path. `kinds`: of faults that can be injected."""

    async def page(request: Request) -> Response:
        return HTMLResponse(make_page(), headers=HEADERS)

    async def run(request: Request) -> Response:
        return _json({**feed.all(), "kinds": kinds})

    async def step(request: Request) -> Response:
        return _json(feed.measured.pictures())

    async def points(request: Request) -> Response:
        return _json(feed.points(_number(request, "start_s"), _number(request, "end_s")))

    async def events(request: Request) -> Response:
        stream = _events(NewsReader(feed), request, tick_s, kinds)
        return StreamingResponse(stream, headers=HEADERS, media_type="text/event-stream")

    async def metrics(request: Request) -> Response:
        text = metrics_text(feed.follower.model, time.time())
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def plan(request: Request) -> Response:
        picture = feed.plan_of_epoch(request.path_params["epoch"])
        if not picture:
            raise HTTPException(404, f"there is no plan {request.path_params['epoch']}")
        return Response(picture, headers=HEADERS, media_type="image/svg+xml")

    async def healthz(request: Request) -> Response:
        return _json({"status": "ok"})

    async def readyz(request: Request) -> Response:
        model = feed.follower.model
        state = state_of(model, present(model, time.time())[1])
        return _json({"state": state}, 200 if state in TRAINING else 503)

    return {
        "/": page,
        "/api/run": run,
        "/api/points": points,
        "/api/events": events,
        "/api/step": step,
        "/metrics": metrics,
        "/plan/{epoch:int}.svg": plan,
        "/healthz": healthz,
        "/readyz": readyz,
    }


def _exporting(feed: RunFeed, exporter: IncidentExporter | None) -> Any:
    """While the server runs, incidents are sent on as they are settled."""

    async def export(to: IncidentExporter) -> None:
        while True:
            to.export(feed.follower.model)
            await asyncio.sleep(EXPORT_S)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = None if exporter is None else asyncio.create_task(export(exporter))
        yield
        if task is not None and exporter is not None:
            task.cancel()
            exporter.export(feed.follower.model)
            await asyncio.to_thread(exporter.close)

    return lifespan


async def _act(request: Request, control: ViewControl | None) -> Response:
    """Inject a fault or stop the job; the secret comes with every request."""
    if control is None:
        return _json({"text": READ_ONLY}, 403)
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not control.allows(secret.strip()):
        return _json({"text": "that is not the secret of this job"}, 401)
    try:
        if request.url.path.endswith("stop"):
            text = await asyncio.to_thread(control.stop)
        else:
            wanted = msgspec.json.decode(await request.body(), type=dict[str, str])
            kind, target = wanted.get("kind", ""), wanted.get("target", "")
            text = await asyncio.to_thread(control.inject, kind, target)
    except (HoldfastError, msgspec.DecodeError) as error:
        return _json({"text": str(error)}, 400)
    return _json({"text": text})


def _number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise HTTPException(400, f"{name}={text!r} is no number") from None


async def _events(
    reader: NewsReader, request: Request, tick_s: float, kinds: Sequence[str]
) -> AsyncIterator[bytes]:
    yield _event("all", {**reader.first(), "kinds": kinds})
    quiet_s = 0.0
    while not await request.is_disconnected():
        if (news := reader.news()) is not None:
            quiet_s = 0.0
            yield _event("news", news)
        elif reader.is_over:
            yield _event("end", {})
            return
        elif quiet_s >= PING_S:
            quiet_s = 0.0
            yield b": nothing new\n\n"
        quiet_s += tick_s
        await asyncio.sleep(tick_s)


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
