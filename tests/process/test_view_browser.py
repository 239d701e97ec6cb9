"""The page in a real browser: followed live, by keyboard, narrow and wide."""

import os
from pathlib import Path

import pytest

from holdfast.observe.page import make_page
from holdfast.observe.run.load import follow_run
from holdfast.observe.view_data import RunFeed
from support.live_view import load_browser, viewed_job
from support.made_runs import disturbed_run

browsers = load_browser()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(120),
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


@pytest.mark.process
def test_a_live_job_on_the_page(browser, tmp_path):
    with viewed_job(tmp_path, steps=60) as url:
        browser.open(url)
        browser.wait_until("document.body && document.body.dataset.ready === '1'")
        browser.wait_until("document.querySelectorAll('#incidents details').length === 1", 30)
        browser.wait_until("document.getElementById('state').textContent === 'finished'", 60)
        assert browser.ask("charts[0].data[0].length") >= 60
        assert browser.ask("document.querySelectorAll('[data-worker]').length") == 4
        browser.ask("document.getElementById('in').click()")
        browser.wait_until("zoom !== null && charts[0].scales.x.max < run.now_s")
        browser.ask("document.getElementById('all').click()")
        browser.wait_until("zoom === null && charts[0].scales.x.max >= run.now_s")
        keep_picture(browser, "view.png")
        assert browser.problems() == []
        assert all(request.startswith((url, "data:")) for request in browser.requests())


@pytest.fixture
def page(tmp_path):
    follower = follow_run(disturbed_run().end().write(tmp_path / "run"))
    path = tmp_path / "run.html"
    path.write_text(make_page(RunFeed(follower).all()))
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
    keep_picture(browser, f"{width}.png")


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
