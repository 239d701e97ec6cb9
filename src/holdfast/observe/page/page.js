"use strict";
// The page of a run: draws what the run model says. With data inside the file it stands alone;
// without, it asks the server that sent it and listens to its events.
const $ = (id) => document.getElementById(id);
const COLUMNS = ["at_s", "step", "loss", "step_time_s", "tokens_per_s"];
const MARKS = { fault: "#e5484d", lost: "#e8890c", slow: "#c9a227", recovery: "#2f9e60", plan: "#3b82f6", checkpoint: "#9d7bd8" };
const MAX_POINTS = 6000;
const STEP_MS = 2000;
const MAX_LINES = 300;  // of the log; the filter looks at all of it
let run = null, incidents = [], notes = [], points = null, charts = [], zoom = null, chosen = "";
let isLive = false, plans = {}, stepShown = -1, stepSeen = false;

const el = (tag, text, attributes = {}) => {
  const node = document.createElement(tag);
  if (text !== undefined && text !== "") node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};
const svgUrl = (svg) => `data:image/svg+xml;base64,${btoa(Array.from(new TextEncoder().encode(svg), (b) => String.fromCharCode(b)).join(""))}`;
const bytes = (value) => {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  for (; value >= 999.5 && step < 4; step += 1) value /= 1024;
  return `${value.toFixed(step && value < 99.95 ? 1 : 0)} ${names[step]}`;
};
const num = (value, digits = 4) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const big = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

// Numbers at the top.
function drawHead() {
  document.title = `${run.name}: ${run.state}`;
  $("name").textContent = run.name;
  $("state").textContent = run.state;
  $("state").className = `badge ${run.state}`;
  $("about").textContent = [`${run.model}, ${big(run.num_parameters)} parameters`, run.shape, run.run_dir, run.reason].filter(Boolean).join(" · ");
  const share = run.num_steps ? Math.min(1, run.next_step / run.num_steps) : 0;
  $("bar").firstElementChild.style.width = `${100 * share}%`;
  $("bar").setAttribute("aria-valuemax", run.num_steps);
  $("bar").setAttribute("aria-valuenow", run.next_step);
  const lost = run.workers.filter((w) => w.state === "lost" || w.state === "joining").length;
  const failures = Object.values(run.failures).reduce((a, b) => a + b, 0);
  const numbers = [
    ["step", `${big(run.next_step)} / ${big(run.num_steps)}`], ["loss", num(run.loss)],
    ["step time", span(run.step_time_s)], ["tokens/s", big(run.tokens_per_s)],
    ["goodput", `${(100 * run.goodput.ratio).toFixed(1)} %`], ["failures", big(failures)],
    ["longest stall", span(run.longest_stall_s)], ["workers missing", big(lost)],
    ["steps done again", big(run.steps_redone)], ["wall time", span(run.now_s)],
  ];
  $("numbers").replaceChildren(...numbers.map(([name, value]) => {
    const box = el("div");
    box.append(el("dt", name), el("dd", value));
    return box;
  }));
  $("foot").textContent = `Holdfast ${run.version} · started ${new Date(1000 * run.started_unix_s).toLocaleString()}`;
}

// The cluster.
function drawCluster() {
  const nodes = new Map();
  for (const worker of run.workers) {
    if (!nodes.has(worker.node)) nodes.set(worker.node, []);
    nodes.get(worker.node).push(worker);
  }
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.worker : "";
  $("cluster").replaceChildren(...[...nodes].map(([node, workers]) => {
    const box = el("div", "", { class: "node" }), row = el("div");
    box.append(el("h3", `node ${node}`), row);
    for (const w of workers) {
      const button = el("button", "", { class: `w ${w.state}`, type: "button", "data-worker": w.name, "aria-expanded": String(w.name === chosen) });
      const words = w.state === "lost" ? `lost: ${w.failure}` : w.state === "slow" ? `slow, ${w.slow.toFixed(1)}×` : w.state;
      button.append(el("b", w.name), el("span", [w.role, words, w.num_failures ? `${w.num_failures} lost` : ""].filter(Boolean).join(" · ")));
      const measured = [w.speed ? `speed ${w.speed.toFixed(2)}` : "", w.memory_bytes ? bytes(w.memory_bytes) : ""].filter(Boolean).join(" · ");
      if (measured) button.append(el("br"), el("span", measured, { title: "speed beside workers that compute the same; most memory used" }));
      button.onclick = () => { chosen = chosen === w.name ? "" : w.name; drawCluster(); };
      row.append(button);
    }
    return box;
  }));
  if (focused) {
    const again = [...document.querySelectorAll("[data-worker]")].find((b) => b.dataset.worker === focused);
    if (again) again.focus();
  }
  const worker = run.workers.find((w) => w.name === chosen);
  $("worker").hidden = !worker;
  if (!worker) return;
  const list = el("ol");
  for (const [at, words] of worker.history) {
    const item = el("li");
    item.append(el("time", span(at)), el("span", words));
    list.append(item);
  }
  $("worker").replaceChildren(el("h3", `${worker.name}, process ${worker.process}${worker.role ? `, ${worker.role}` : ""}`), list);
}

// Charts.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const marks = () => notes.filter((n) => MARKS[n[2]]);
const markPlugin = () => ({ hooks: { draw: [(u) => {
  const { left, top, width, height } = u.bbox, drawn = new Set();
  u.ctx.save();
  u.ctx.lineWidth = 1.5 * devicePixelRatio;
  for (const [at, , kind] of marks()) {
    const x = Math.round(u.valToPos(at, "x", true));
    if (x < left || x > left + width || drawn.has(x + kind)) continue;
    drawn.add(x + kind);
    u.ctx.strokeStyle = MARKS[kind];
    u.ctx.globalAlpha = kind === "checkpoint" ? 0.5 : 0.8;
    u.ctx.beginPath(); u.ctx.moveTo(x, top); u.ctx.lineTo(x, top + height); u.ctx.stroke();
  }
  u.ctx.restore();
}] } });

function makeCharts() {
  const axis = { stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid") }, font: "12px system-ui" };
  const sync = uPlot.sync("steps");
  const make = (title, column, colour, format) => {
    const box = el("div", "", { class: "chart" });
    box.append(el("h3", title));
    $("charts").append(box);
    const options = {
      width: box.clientWidth, height: 170, plugins: [markPlugin()],
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false } },
      axes: [{ ...axis, values: (u, all) => all.map(clock), space: 80 }, { ...axis, size: 64, values: (u, all) => all.map(format) }],
      series: [{ label: "time", value: (u, v) => (v === null ? "–" : clock(v)) },
        { label: "step", show: true, scale: "step", stroke: "transparent", points: { show: false }, value: (u, v) => big(v) },
        { label: title, stroke: colour, width: 1.5, points: { size: 4 }, spanGaps: false, value: (u, v) => (v === null ? "–" : format(v)) }],
      hooks: { setSelect: [(u) => {
        if (u.select.width > 4) show(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }] },
    };
    const chart = new uPlot(options, [[], [], []], box);
    chart.column = column;
    chart.over.addEventListener("dblclick", () => show(null, null));
    charts.push(chart);
  };
  make("step time", "step_time_s", css("--blue"), span);
  make("loss", "loss", css("--amber"), (v) => Number(v.toPrecision(4)).toString());
  make("tokens/s", "tokens_per_s", css("--green"), big);
  $("marks").replaceChildren(...Object.entries(MARKS).map(([kind, colour]) => {
    const item = el("li"), dot = el("i");
    dot.style.background = colour;
    item.append(dot, kind === "plan" ? "plan change" : kind);
    return item;
  }));
  addEventListener("resize", () => charts.forEach((c) => c.setSize({ width: c.root.parentElement.clientWidth, height: 170 })));
}
const clock = (s) => {
  const whole = Math.max(0, s), h = Math.floor(whole / 3600), m = Math.floor((whole % 3600) / 60), rest = whole % 60;
  const seconds = Number.isInteger(Math.round(rest * 100) / 100) ? String(Math.round(rest)).padStart(2, "0") : rest.toFixed(2).padStart(5, "0");
  return h ? `${h}:${String(m).padStart(2, "0")}:${seconds}` : `${m}:${seconds}`;
};
// A line is not drawn through a stall: there an empty point lies between two steps.
function withGaps() {
  const found = { at_s: [], step: [] };
  for (const chart of charts) found[chart.column] = [];
  for (let n = 0; n < points.at_s.length; n++) {
    const wait = n ? points.at_s[n] - points.at_s[n - 1] : 0;
    if (n && points.step[n] - points.step[n - 1] <= 1 && wait > 4 * Math.max(run.usual_step_s, points.step_time_s[n])) {
      for (const name in found) found[name].push(name === "at_s" ? points.at_s[n - 1] + wait / 2 : null);
    }
    for (const name in found) found[name].push(points[name][n]);
  }
  return found;
}
function drawCharts() {
  const end = Math.max(run.now_s, 1), shown = withGaps(), first = points.at_s[0] || 0;
  const start = first > 0.2 * end ? first - 0.02 * end : 0;  // a long start is not drawn
  for (const chart of charts) {
    chart.setData([shown.at_s, shown.step, shown[chart.column]], false);
    chart.batch(() => {
      chart.setScale("x", { min: zoom ? zoom[0] : start, max: zoom ? zoom[1] : end });
    });
  }
}
async function show(from, to) {
  zoom = from === null ? null : [Math.max(0, from), to];
  if (isLive) {
    const query = zoom ? `?start_s=${zoom[0]}&end_s=${zoom[1]}` : "";
    points = await (await fetch(`api/points${query}`)).json();
  }
  drawCharts();
}
function scale(factor) {
  const [low, high] = zoom || [0, run.now_s], middle = (low + high) / 2, half = ((high - low) / 2) * factor;
  if (half * 2 >= run.now_s) show(null, null);
  else show(Math.max(0, middle - half), Math.min(run.now_s, middle + half));
}

// Goodput.
function drawGoodput() {
  const parts = [...run.goodput.parts].sort((a, b) => b.seconds - a.seconds);
  $("stack").setAttribute("aria-label", parts.map((p) => `${p.cause} ${(100 * p.share).toFixed(1)} %`).join(", "));
  $("stack").replaceChildren(...parts.map((p) => {
    const bar = el("span", "", { title: `${p.cause} ${(100 * p.share).toFixed(1)} %` });
    bar.style.cssText = `width:${100 * p.share}%;background:${p.colour}`;
    return bar;
  }));
  const rows = parts.map((p) => {
    const row = el("tr"), name = el("td"), dot = el("i");
    dot.style.background = p.colour;
    name.append(dot, p.cause);
    row.append(name, el("td", p.bucket, { class: "b" }), el("td", span(p.seconds), { class: "n" }), el("td", `${(100 * p.share).toFixed(1)} %`, { class: "n" }));
    return row;
  });
  const all = el("tr");
  all.append(el("td", "all"), el("td", "", { class: "b" }), el("td", span(parts.reduce((a, p) => a + p.seconds, 0)), { class: "n" }), el("td", "100.0 %", { class: "n" }));
  $("goodput").tBodies[0].replaceChildren(...rows, all);
  drawWhatIf();
}
function drawWhatIf() {
  if (!run.what_if.length) { $("what-if").replaceChildren(); return; }
  const ours = { name: "as it was", seconds: run.goodput.total_s, ratio: run.goodput.ratio, parts: run.goodput.parts };
  const all = [ours, ...run.what_if], longest = Math.max(...all.map((w) => w.seconds));
  $("what-if").replaceChildren(el("h3", "What if: the same steps and failures, by the simulator"),
    el("p", "A restart takes as long as this job's own start; a hang is found by the time limit of torch's groups, 10 min.", { class: "hint" }), ...all.flatMap((w) => {
    const bars = el("div", "", { class: "bars", role: "img", "aria-label": w.parts.map((p) => `${p.cause} ${span(p.seconds)}`).join(", ") });
    bars.style.width = `${Math.max(1, (100 * w.seconds) / longest)}%`;
    bars.append(...w.parts.map((p) => {
      const bar = el("span", "", { title: `${p.cause} ${span(p.seconds)}` });
      bar.style.cssText = `width:${100 * p.share}%;background:${p.colour}`;
      return bar;
    }));
    return [el("p", `${w.name}: ${span(w.seconds)}, goodput ${(100 * w.ratio).toFixed(1)} %`), bars];
  }));
}

// Incidents.
const outcome = (i) => ({
  recovery: `the step was completed with ${i.shape}; ${i.micro_batches} micro-batches done again`,
  restore: `a snapshot was loaded; ${i.steps_redone} steps done again`,
  coordinator: "another coordinator went on from its journal; no step waited",
  joiner: "it had no role yet; nothing had to be done",
}[i.kind] || "under way");
function incidentBox(i) {
  const box = el("details", "", { "data-number": i.number }), head = el("summary");
  head.append(el("span", clock(i.at_s), { class: "s" }), el("span", `step ${big(i.step)}`, { class: "s" }), el("b", i.title),
    el("span", i.kind === "unresolved" ? "under way" : `stall ${span(i.stall_s)}`, { class: i.stall_s > 1 ? "bad" : "" }),
    el("span", i.kind === "joiner" ? "" : i.whole_after_s === null ? "not whole yet" : `whole after ${span(i.whole_after_s)}`, { class: "hint" }));
  box.append(head);
  box.addEventListener("toggle", () => { if (box.open && box.childElementCount === 1) fill(box, i); });
  return box;
}
function fill(box, i) {
  const list = (title, items) => {
    if (!items.length) return;
    const ul = el("ul");
    ul.append(...items.map((text) => el("li", text)));
    box.append(el("p", title), ul);
  };
  list("What was seen", [...i.faults.map((f) => `fault on purpose: ${f}`), ...i.seen]);
  list("What was decided, and why", i.decisions);
  list("What the planner found second best, and so on", i.runner_ups);
  list("What was done", [outcome(i), ...i.sources, ...(i.missing.length ? [`not back: ${i.missing.join(", ")}`] : [])]);
  list("What it cost until the next step", Object.entries(i.costs_s).map(([cause, s]) => `${cause}: ${span(s)}`));
  if (!i.plan) return;
  const links = el("p", "Plans: ");
  for (const [word, file] of [["before", i.plan_before], ["after", i.plan]]) {
    const found = /epoch-(\d+)/.exec(file), url = isLive ? found && `plan/${found[1]}.svg` : plans[file] && svgUrl(plans[file]);
    if (!url) continue;
    const link = el("a", word, { href: "#", "aria-expanded": "false" });
    const picture = el("img", "", { alt: `the plan ${word}`, hidden: "" });
    link.onclick = (event) => {
      event.preventDefault();
      picture.src = url;
      picture.hidden = !picture.hidden;
      link.setAttribute("aria-expanded", String(!picture.hidden));
    };
    links.append(link, " ", picture);
  }
  box.append(links);
}
function drawIncidents(changed) {
  $("num-incidents").textContent = incidents.length ? `${incidents.length}` : "none";
  for (const i of changed) {
    const old = $("incidents").querySelector(`[data-number="${i.number}"]`), made = incidentBox(i);
    if (old) { made.open = old.open; if (old.open) fill(made, i); old.replaceWith(made); }
    else $("incidents").prepend(made);
  }
}

// Checkpoints and the log.
function drawCheckpoints() {
  const { number, num_failed: failed, newest } = run.checkpoints;
  const age = newest.length ? `, newest ${span(run.now_s - newest[0].at_s)} old` : "";
  $("num-checkpoints").textContent = number || failed ? `On disk: ${number} checkpoints written${failed ? `, ${failed} failed` : ""}${age}.` : "On disk: no checkpoint.";
  const { step, age_s: old, kept, lacking, against, not_against: not, means } = run.snapshot;
  $("kept").textContent = [kept, ...lacking].filter(Boolean).join(". ");
  const reason = Object.fromEntries(means.map((m) => m.split(": ")));
  $("losses").replaceChildren(...[...against.map((w) => [w, true]), ...not.map((w) => [w, false])].map(([who, survives]) => {
    const item = el("li"), why = survives ? `survived: ${reason[who] || ""}` : "state would be lost";
    item.append(el("b", `${who} lost now: `), el("span", why, { class: survives ? "yes" : "no" }));
    return item;
  }));
  $("snapshot").textContent = step === null ? "In memory: no snapshot." : `In memory: the newest whole snapshot has ${big(step)} steps done, ${big(Math.max(0, run.next_step - step))} fewer than the job; it is ${span(old)} old.`;
  $("checkpoints").hidden = !newest.length;
  $("checkpoints").tBodies[0].replaceChildren(...newest.map((c) => {
    const row = el("tr");
    row.append(el("td", big(c.step), { class: "n" }), el("td", clock(c.at_s), { class: "n" }), el("td", span(c.seconds), { class: "n" }), el("td", c.path, { class: "b" }));
    return row;
  }));
}
// The last step.
function drawStep(drawn) {
  if (!drawn || drawn.step === stepShown) return;
  stepShown = drawn.step;
  $("last-step").hidden = false;
  $("step-words").textContent = `${big(drawn.step)}: ${span(drawn.measured_s)} measured, ${span(drawn.predicted_s)} predicted`;
  for (const name of ["measured", "predicted"]) {
    $(name).src = svgUrl(drawn[name]);
    $(name).alt = `the last step as it was ${name}`;
  }
}
async function askStep(anyway) {
  if (!anyway && (document.hidden || run?.state === "finished" || (!stepSeen && stepShown >= 0))) return;
  const answer = await fetch("api/step");
  if (answer.ok) drawStep(await answer.json());
}
function watchStep() {
  new IntersectionObserver((seen) => { stepSeen = seen[0].isIntersecting; askStep(false); }).observe($("last-step"));
  setInterval(() => askStep(false), STEP_MS);
}

// Control.
async function act(path, body) {
  const headers = { Authorization: `Bearer ${$("secret").value}`, "Content-Type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  $("told").textContent = (await answer.json()).text;
  $("told").className = answer.ok ? "" : "bad";
}
function allowControl(kinds) {
  if (!kinds || !kinds.length || !$("control").hidden) return;
  $("control").hidden = false;
  $("kind").replaceChildren(...kinds.map((kind) => el("option", kind)));
  $("act").onsubmit = (event) => { event.preventDefault(); act("api/inject", { kind: $("kind").value, target: $("target").value }); };
  $("stop").onclick = () => { if ($("act").reportValidity() && confirm("Stop the job, with a checkpoint?")) act("api/stop", {}); };
}

function logLine([at, step, kind, text]) {
  const item = el("li");
  item.append(el("time", clock(at)), el("span", `step ${big(step)}`, { class: "s" }), el("span", kind, { class: `k ${kind}` }), el("span", text));
  return item;
}
function wanted([, , kind, text]) {
  const words = $("filter").value.toLowerCase();
  return (kind !== "decision" || $("decisions").checked) && (!words || text.toLowerCase().includes(words));
}
function drawLog() {
  $("log").replaceChildren(...notes.filter(wanted).slice(-MAX_LINES).reverse().map(logLine));
}

function redraw(changed, newNotes) {
  drawHead(); drawCluster(); drawGoodput(); drawIncidents(changed); drawCheckpoints(); drawCharts();
  $("log").prepend(...newNotes.filter(wanted).slice(-MAX_LINES).reverse().map(logLine));
  while ($("log").childElementCount > MAX_LINES) $("log").lastElementChild.remove();
}
function takeAll(data) {
  run = data.run; incidents = data.incidents; notes = data.notes; points = data.points;
  plans = data.plans || {};
  allowControl(data.kinds);
  drawStep(data.step);
  $("incidents").replaceChildren();
  $("log").replaceChildren();
  redraw(incidents, notes);
}
function takeNews(news) {
  run = news.run;
  for (const i of news.incidents) incidents[i.number - 1] = i;
  notes.push(...news.notes);
  if (!zoom) {
    for (const name of Object.keys(points)) points[name].push(...(news.points[name] || []));
    if (points.at_s.length > MAX_POINTS) show(null, null);
  }
  redraw(news.incidents, news.notes);
}

function begin() {
  makeCharts();
  $("all").onclick = () => show(null, null);
  $("recent").onclick = () => show(0.9 * run.now_s, run.now_s);
  $("in").onclick = () => scale(0.5);
  $("out").onclick = () => scale(2);
  $("filter").oninput = $("decisions").onchange = drawLog;
  const inside = $("data").textContent.trim();
  if (inside) { takeAll(JSON.parse(inside)); document.body.dataset.ready = "1"; return; }
  isLive = true;
  watchStep();
  const source = new EventSource("api/events");
  source.addEventListener("all", (event) => { takeAll(JSON.parse(event.data)); document.body.dataset.ready = "1"; });
  source.addEventListener("news", (event) => takeNews(JSON.parse(event.data)));
  source.addEventListener("end", () => { source.close(); askStep(true); });
  source.onerror = () => { $("state").textContent = "no connection"; $("state").className = "badge silent"; };
}
begin();
