"""Requests to an ASGI application, without a network."""

import asyncio
from typing import Any


class AsgiReply:
    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, {}, b""


async def _ask(
    app: Any, path: str, query: str, headers: dict[str, str], post: bytes | None
) -> AsgiReply:
    reply, sent = AsgiReply(), False
    scope = {
        "type": "http",
        "method": "GET" if post is None else "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
    }

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": post or b"", "more_body": False}
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    await app(scope, receive, send)
    return reply


def ask_app(
    app: Any,
    path: str,
    query: str = "",
    *,
    headers: dict[str, str] | None = None,
    post: bytes | None = None,
) -> AsgiReply:
    return asyncio.run(asyncio.wait_for(_ask(app, path, query, headers or {}, post), 30))
