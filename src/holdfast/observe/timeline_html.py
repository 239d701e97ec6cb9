"""A timeline as one HTML file that needs nothing else: the picture and all numbers.

Pointing at a bar lights up its micro-batch on every worker, so that a route can be followed by eye.
"""

from collections.abc import Iterator, Sequence
from html import escape

from holdfast.observe.quantities import format_bytes, format_share, format_time
from holdfast.observe.timeline_svg import timeline_svg, typeset
from holdfast.observe.timeline_view import KINDS, TimelineRow, TimelineView

_STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1f24; --dim: #59636e; --line: #d8dee4; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12161c; --ink: #e6edf3; --dim: #9aa5b1; --line: #30363d; }
  .paper { fill: #12161c; } .ink { fill: #e6edf3; } .dim { fill: #9aa5b1; } .warn { fill: #ff9a5c; }
  .grid { stroke: #262c34; } .axis { stroke: #9aa5b1; } .pale { fill: #1a2028; }
  .line { stroke: #2b323b; } .bar rect { stroke: #12161c; } .guest rect { stroke: #ffd33d; }
  .lost { stroke: #ff9a5c; } .path { stroke: #ff6b6b; }
}
body { background: var(--paper); color: var(--ink); margin: 24px auto; max-width: 1320px;
  padding: 0 16px;
  font: 15px/1.5 "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; }
h2 { font-size: 16px; margin: 28px 0 8px; }
svg { width: 100%; height: auto; display: block; }
main { padding: 0 1.875%; } /* the picture's own margin */
.facts { display: flex; flex-wrap: wrap; gap: 8px 36px; margin: 16px 0; }
.facts div { min-width: 120px; } .facts dt { color: var(--dim); font-size: 13px; }
.facts dd { margin: 0; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { color: var(--dim); font-weight: 500; } th, td { padding: 4px 14px 4px 0; text-align: right; }
th { border-bottom: 1px solid var(--line); white-space: nowrap; }
th.name, td.name { text-align: left; }
svg.picked .bar { opacity: 0.25; } svg.picked .bar.on { opacity: 1; }
p.path, footer { color: var(--dim); font-size: 13px; }
""".strip()

_SCRIPT = """
const picture = document.querySelector("svg");
const bars = [...picture.querySelectorAll(".bar")];
function pick(number) {
  picture.classList.toggle("picked", number !== null);
  for (const bar of bars) bar.classList.toggle("on", bar.dataset.m === number);
}
picture.addEventListener("pointerover", (event) => {
  const bar = event.target.closest(".bar");
  pick(bar && bar.dataset.m !== "-1" ? bar.dataset.m : null);
});
picture.addEventListener("pointerleave", () => pick(null));
""".strip()

_COLUMNS = (
    "busy", "idle", "gaps", "in flight", "memory",
    "parameters", "gradients", "optimizer", "activations",
)  # fmt: skip


def timeline_html(view: TimelineView) -> str:
    title = escape(typeset(view.title))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            "</head><body>",
            timeline_svg(view).rstrip(),
            # After the picture's own style, so that the colours for dark screens win.
            f"<style>{_STYLE}</style>",
            "<main>",
            *_facts(view.facts),
            "<h2>Workers</h2>",
            *_table(view),
            *_path(view),
            "<footer>Point at a bar to follow its micro-batch through the workers.</footer></main>",
            f"<script>{_SCRIPT}</script>",
            "</body></html>",
            "",
        ]
    )


def _facts(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield '<dl class="facts">'
    for name, value in facts:
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"


def _table(view: TimelineView) -> Iterator[str]:
    names = "".join(f'<th class="name">{name}</th>' for name in ("role", "workers", ""))
    yield '<div class="scroll"><table><thead><tr>' + names
    yield "".join(f"<th>{name}</th>" for name in _COLUMNS) + "</tr></thead><tbody>"
    for row in view.rows:
        cells = (row.label, row.place, row.note)
        yield "<tr>" + "".join(f'<td class="name">{escape(cell)}</td>' for cell in cells)
        yield "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row, view.end)) + "</tr>"
    yield "</tbody></table></div>"
    if view.num_hidden:
        yield f'<p class="path">{view.num_hidden} more workers are not shown.</p>'


def _cells(row: TimelineRow, end: float) -> list[str]:
    if row.lost:
        return ["-"] * len(_COLUMNS)
    memory = row.memory
    sizes = (
        memory.total,
        memory.parameters,
        memory.gradients,
        memory.optimizer,
        memory.activations,
    )
    return [
        format_share(row.busy / end) if end else "-",
        format_time(end - row.busy),
        str(len(row.gaps)),
        str(row.in_flight),
        *map(format_bytes, sizes),
    ]


def _path(view: TimelineView) -> Iterator[str]:
    if not view.path:
        return
    yield "<h2>Critical path</h2>"
    steps = [f"{KINDS[bar.kind]} {bar.micro_batch} on {bar.stage}" for _, bar in view.path]
    yield f'<p class="path">{escape(" → ".join(steps))}</p>'
