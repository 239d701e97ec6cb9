"""The page of a run, put together from its parts beside this file: one HTML file, no requests."""

from importlib.resources import files
from typing import Any

import msgspec

_CHARTS = "vendor/uPlot.iife.min.js"
_CHART_STYLE = "vendor/uPlot.min.css"


def _read(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def make_page(data: dict[str, Any] | None = None) -> str:
    """With data, a file that stands alone; without, it asks the server that sends it."""
    inside = msgspec.json.encode(data).decode().replace("</", "<\\/") if data is not None else ""
    page = _read("page.html")
    parts = {
        "/*STYLE*/": f"{_read(_CHART_STYLE)}\n{_read('page.css')}",
        "/*CHARTS*/": _read(_CHARTS),
        "/*SCRIPT*/": _read("page.js"),
        "/*DATA*/": inside,
    }
    for mark, text in parts.items():
        before, _, after = page.partition(mark)
        page = before + text + after
    return page
