"""The web server of `holdfast view`: read-only, one run, no requests to other machines.

/             the page; it listens to /api/events
/api/run      everything as JSON
/api/points   steps of a stretch of time, thinned out
/api/events   server-sent events: `all` once, then `news`, `end` when the job has ended
/plan/N.svg   the plan of epoch N as a timeline
/metrics      for Prometheus
/healthz      the server answers
/readyz       the job trains; 503 and the reason if it does not
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.observe.page import make_page
from holdfast.observe.prometheus import metrics_text
from holdfast.observe.run.summary import present, state_of
from holdfast.observe.run_directory import plan_name
from holdfast.observe.timeline_svg import timeline_svg
from holdfast.observe.timeline_view import Notes, view_of
from holdfast.observe.view_data import NewsReader, RunFeed
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import evaluate

TICK_S = 0.25
PING_S = 15.0
TRAINING = ("training", "recovering")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
PLAN_COST = UnitCost(1.0, 1.0, 1.0)
"""Forward 1, backward 2: the picture shows who does what, not how long it took."""

Answer = Callable[[Request], Awaitable[Response]]


def _json(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, HEADERS, "application/json")


def make_app(feed: RunFeed, *, tick_s: float = TICK_S) -> Starlette:
    async def page(request: Request) -> Response:
        return HTMLResponse(make_page(), headers=HEADERS)

    async def run(request: Request) -> Response:
        return _json(feed.all())

    async def points(request: Request) -> Response:
        return _json(feed.points(_number(request, "start_s"), _number(request, "end_s")))

    async def events(request: Request) -> Response:
        stream = _events(NewsReader(feed), request, tick_s)
        return StreamingResponse(stream, headers=HEADERS, media_type="text/event-stream")

    async def metrics(request: Request) -> Response:
        text = metrics_text(feed.follower.model, time.time())
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def plan(request: Request) -> Response:
        return Response(
            _plan_picture(feed, request.path_params["epoch"]), media_type="image/svg+xml"
        )

    async def healthz(request: Request) -> Response:
        return _json({"status": "ok"})

    async def readyz(request: Request) -> Response:
        model = feed.follower.model
        state = state_of(model, present(model, time.time())[1])
        return _json({"state": state}, 200 if state in TRAINING else 503)

    handlers: dict[str, Answer] = {
        "/": page,
        "/api/run": run,
        "/api/points": points,
        "/api/events": events,
        "/metrics": metrics,
        "/plan/{epoch:int}.svg": plan,
        "/healthz": healthz,
        "/readyz": readyz,
    }
    return Starlette(routes=[Route(path, answer) for path, answer in handlers.items()])


def _number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise HTTPException(400, f"{name}={text!r} is no number") from None


def _plan_picture(feed: RunFeed, epoch: int) -> str:
    plan = feed.follower.plan(plan_name(epoch))
    if plan is None:
        raise HTTPException(404, f"there is no plan {epoch}")
    return timeline_svg(view_of(evaluate(plan, Profile(worker=PLAN_COST)), Notes()))


async def _events(reader: NewsReader, request: Request, tick_s: float) -> AsyncIterator[bytes]:
    yield _event("all", reader.first())
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
