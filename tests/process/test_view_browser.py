"""The page in a real browser: followed live, by keyboard, narrow and wide."""

import os
from pathlib import Path

import pytest

from holdfast.cli.main import main
from support.live_view import load_browser, viewed_job
from support.made_runs import PLAN, disturbed_run
from support.measured import write_times
from support.timelines import small_timeline

browsers = load_browser()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(browsers.find_browser() is None, reason="chromium is not installed"),
]

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CONTRAST = """(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const f = [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2];
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  let least = 21;
  for (const node of document.querySelectorAll("header *, main *, footer")) {
    const own = [...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()"""


@pytest.fixture
def browser():
    with browsers.Browser() as opened:
        yield opened


def keep_picture(browser, name):
    """Where HOLDFAST_PICTURES says, for the documentation."""
    if folder := os.environ.get("HOLDFAST_PICTURES"):
        Path(folder, name).write_bytes(browser.picture())


COORDINATOR = """
[[faults]]
kind = "COORDINATOR_LOSS"
at_step = 25
"""
LAGS = """(() => {
  window.lags = { steps: [], incidents: {} };
  const drawn = redraw, age = at => Date.now() / 1000 - run.started_unix_s - at;
  redraw = (changed, ...rest) => {
    const before = charts[0].data[0].length;
    drawn(changed, ...rest);
    const shown = charts[0].data[0];
    if (shown.length > before) lags.steps.push(age(points.at_s[points.at_s.length - 1]));
    for (const i of changed) lags.incidents[i.number] ??= age(i.at_s);
  };
})()"""
"""How long ago that happened what is drawn for the first time."""
WITHIN_S = 1.0


def inject_from_the_page(browser, secret, target):
    """First without the secret, which changes nothing."""
    fill = "document.getElementById('%s').value = %r"
    told = "document.getElementById('told').textContent"
    for known, words in (("a guess that is wrong", "not the secret"), (secret, "SIGKILL for")):
        browser.ask(fill % ("secret", known))
        browser.ask(fill % ("target", target))
        browser.ask("document.querySelector('#act button[type=submit]').click()")
        browser.wait_until(f"{told}.includes({words!r})", 20)


def check_lags(lags):
    steps, incidents = sorted(lags["steps"]), lags["incidents"].values()
    print(
        f"steps are drawn after {steps[len(steps) // 2]:.2f} s, {steps[-1]:.2f} s at most;", end=" "
    )
    print(f"incidents after {max(incidents):.2f} s at most")
    assert len(incidents) == 3
    assert max(incidents) < WITHIN_S
    assert steps[int(0.95 * len(steps))] < WITHIN_S


@pytest.mark.process
def test_a_live_job_on_the_page(browser, tmp_path):
    with viewed_job(tmp_path, steps=150, more=COORDINATOR, words=["--control"]) as url:
        browser.open(url)
        browser.wait_until("document.body && document.body.dataset.ready === '1'")
        browser.ask(LAGS)
        browser.wait_until("document.querySelectorAll('#incidents details').length === 2", 180)
        inject_from_the_page(browser, (tmp_path / "run" / "secret").read_text(), "n0.g1")
        browser.wait_until("document.querySelectorAll('#incidents details').length === 3", 90)
        browser.wait_until("document.getElementById('measured').naturalWidth > 0", 30)
        browser.wait_until("document.querySelectorAll('#what-if .bars').length === 3", 90)
        browser.wait_until("document.getElementById('state').textContent === 'finished'", 180)
        check_lags(browser.ask("lags"))
        assert browser.ask("charts[0].data[0].length") >= 150
        assert browser.ask("document.querySelectorAll('[data-worker]').length") == 4
        browser.ask("document.querySelector('#incidents details:last-child').open = true")
        browser.ask("document.getElementById('in').click()")
        browser.wait_until("zoom !== null && charts[0].scales.x.max < run.now_s")
        browser.ask("document.getElementById('all').click()")
        browser.wait_until("zoom === null && charts[0].scales.x.max >= run.now_s")
        keep_picture(browser, "view.png")
        browser.resize(390, 900)
        browser.wait_until(f"{OVERFLOW} <= 0", 5)
        keep_picture(browser, "view-narrow.png")
        guess, *problems = browser.problems()
        assert "401" in guess
        assert problems == []
        assert all(request.startswith((url, "data:")) for request in browser.requests())


@pytest.fixture
def page(tmp_path):
    run_dir = disturbed_run().end().write(tmp_path / "run")
    write_times(small_timeline(PLAN), run_dir, range(3))
    path = tmp_path / "run.html"
    assert main(["view", str(run_dir), "--out", str(path)]) == 0
    return path.as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_file_at_two_widths(browser, page, width):
    browser.resize(width, 900)
    browser.open(page)
    browser.wait_until("document.body && document.body.dataset.ready === '1'")
    assert browser.ask(OVERFLOW) <= 0
    assert browser.ask(CONTRAST) >= 4.5
    assert browser.problems() == []
    assert [request for request in browser.requests() if not request.startswith("data:")] == [page]


def test_dark_colours_have_contrast_too(browser, page):
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", features=dark)
    browser.open(page)
    browser.wait_until("document.body && document.body.dataset.ready === '1'")
    assert browser.ask(CONTRAST) >= 4.5


def test_by_keyboard(browser, page):
    browser.open(page)
    browser.wait_until("document.body && document.body.dataset.ready === '1'")
    for _ in range(60):
        browser.press("Tab")
        if browser.ask("document.activeElement.dataset.worker === 'n1.g0'"):
            break
    browser.press("Enter")
    browser.wait_until("!document.getElementById('worker').hidden")
    assert "lost (killed)" in browser.ask("document.getElementById('worker').textContent")
    for _ in range(60):
        browser.press("Tab")
        if browser.ask("document.activeElement.tagName") == "SUMMARY":
            break
    browser.press("Enter")
    browser.wait_until("document.querySelector('details[open]')?.innerText.includes('was seen')")
    for _ in range(5):
        browser.press("Tab")
        if browser.ask("document.activeElement.textContent") == "before":
            break
    browser.press("Enter")
    browser.wait_until("document.querySelector('details[open] img').naturalWidth > 0")
