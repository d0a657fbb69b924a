"""The collector's page in a real browser: on a laptop, in the dark, by keyboard, with scripts off, at full size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from calico_gc.view import View
from calico_gc.web.onefile import one_file
from calico_gc.web.server import Server, Sources
from calico_gc.web.site import templates

from tests.browser import Browser, chromium
from tests.gc_views import large_view, small_view

PAGES = (
    *("/", "/pool/default-ipv4", "/block/10.244.0.0/26", "/nodes", "/node/node-a", "/candidates", "/handles"),
    *("/log", "/problems", "/find?q=node-b", "/block/10.9.9.0/26"),
)
LARGE_PAGES = ("/", "/pool/default-ipv4?page=3", "/nodes?page=2", "/candidates", "/node/worker-0003.example.internal")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(autouse=True)
def laptop(browser: Browser) -> None:
    browser.size(1280, 800)
    browser.dark(False)
    browser.scripts(True)


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    yield from served(small_view())


@pytest.fixture(scope="module")
def large() -> Iterator[str]:
    yield from served(large_view())


def served(view: View) -> Iterator[str]:
    server = Server("127.0.0.1", 0, Sources(str, str, view=lambda: view, metrics=str))
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def keep(browser: Browser, name: str) -> None:
    """Keep a picture where somebody asked for them: ``CALICO_IPAM_PICTURES=folder``."""
    if folder := os.environ.get("CALICO_IPAM_PICTURES"):
        browser.screenshot(Path(folder) / f"{name.strip('/').replace('/', '_') or 'overview'}.png")


def assert_clean(browser: Browser, origin: str) -> None:
    """Nothing went wrong, nothing came from elsewhere, and nothing reaches over the right edge."""
    asked = [line.removeprefix("asks for ") for line in browser.log if line.startswith("asks for ")]
    assert all(url.startswith((origin, "about:", "data:")) for url in asked), asked
    said = [line for line in browser.log if not line.startswith("asks for ") and "404" not in line]
    assert said == []
    assert browser.js("document.documentElement.scrollWidth <= window.innerWidth"), "scrolls sideways"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_every_page_fits_a_laptop_and_asks_nobody_else(browser: Browser, small: str, page: str, dark: bool) -> None:
    browser.dark(dark)
    browser.open(small + page)
    assert_clean(browser, small)
    assert browser.js("document.querySelectorAll('h1').length") == 1
    keep(browser, f"small{page}-{'dark' if dark else 'light'}")


#: contrast of a text against the next background that is not transparent, as WCAG 2 counts it
CONTRAST = """
(function () {
  var canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  function rgb(colour) {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  }
  function light(c) {
    var v = [c[0], c[1], c[2]].map(function (x) {
      x /= 255;
      return x <= .03928 ? x / 12.92 : Math.pow((x + .055) / 1.055, 2.4);
    });
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2];
  }
  function behind(e) {
    for (; e; e = e.parentElement) {
      var c = rgb(getComputedStyle(e).backgroundColor);
      if (c[3] === 255) return c;
    }
    return rgb('white');
  }
  var bad = [];
  document.querySelectorAll('h1,h2,p,a,td,th,dt,dd,li,small,span,button').forEach(function (e) {
    if (!e.innerText || !e.innerText.trim() || !e.offsetParent) return;
    var a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
    var ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(e.tagName + '.' + e.className + ' ' + e.innerText.slice(0, 20) + ' ' + ratio.toFixed(2));
  });
  return bad;
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_text_can_be_read_on_its_ground(browser: Browser, small: str, page: str, dark: bool) -> None:
    browser.dark(dark)
    browser.open(small + page)
    assert browser.js(CONTRAST) == []


def test_light_and_dark_differ(browser: Browser, small: str) -> None:
    colours = set()
    for dark in (False, True):
        browser.dark(dark)
        browser.open(f"{small}/")
        colours.add(browser.js("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_keys_walk_over_a_map_and_open_a_block(browser: Browser, small: str) -> None:
    browser.open(f"{small}/")
    focus = "document.activeElement.title || document.activeElement.innerText"
    stops = []
    for _ in range(14):
        browser.press("Tab", 9)
        stops.append(browser.js(focus))
    on_the_map = [stop for stop in stops if stop.startswith("10.244.")]
    assert len(on_the_map) == 1, "Tab passes a map in one step"
    browser.js("document.querySelector('div.map a').focus()")
    for key, code, there in (
        ("ArrowRight", 39, "10.244.0.64/26"),
        ("ArrowRight", 39, "10.244.0.128/26"),
        ("Home", 36, "10.244.0.0/26"),
        ("ArrowLeft", 37, "10.244.0.0/26"),
        ("End", 35, "10.244.3.0/26"),
        ("ArrowLeft", 37, "10.244.2.0/26"),
    ):
        browser.press(key, code)
        assert browser.js(focus).split(": ")[0] == there, key
    browser.press("Enter", 13)
    browser.wait("document.title.startsWith('Block 10.244.2.0/26')")


def test_up_and_down_go_to_the_next_row(browser: Browser, large: str) -> None:
    browser.open(f"{large}/pool/default-ipv4")
    browser.js("document.querySelectorAll('div.map a')[5].focus()")
    at = "[document.activeElement.offsetLeft, document.activeElement.offsetTop]"
    left, top = browser.js(at)
    browser.press("ArrowDown", 40)
    lower_left, lower_top = browser.js(at)
    assert (lower_left, lower_top > top) == (left, True)
    browser.press("ArrowUp", 38)
    assert browser.js(at) == [left, top]


def test_without_scripts_every_block_is_a_plain_link(browser: Browser, small: str) -> None:
    browser.scripts(False)
    browser.open(f"{small}/")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    assert browser.js("document.querySelectorAll('div.map a[tabindex]').length") == 0
    assert browser.js("document.querySelectorAll('div.map a[href]').length") == 9


def test_a_search_from_the_page(browser: Browser, small: str) -> None:
    browser.open(f"{small}/")
    browser.js("document.querySelector('input').value = '10.244.0.7'; document.querySelector('form').requestSubmit()")
    browser.wait("location.pathname === '/find' && document.readyState === 'complete'")
    assert "shop/web-node-a-7" in browser.js("document.body.innerText")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", LARGE_PAGES)
def test_a_thousand_nodes_and_twenty_thousand_blocks(browser: Browser, large: str, page: str) -> None:
    browser.open(large + page)
    assert_clean(browser, large)
    assert browser.js("document.querySelectorAll('*').length") < 15_000, "more than a browser shows at ease"
    keep(browser, f"large{page.partition('?')[0]}")


def test_the_one_file_opens_blocks_without_a_server(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("".join(one_file(small_view(), templates())), encoding="utf-8")
    for scripts in (True, False):
        browser.scripts(scripts)
        browser.open(file.as_uri())
        assert_clean(browser, "file:")
        shown = "Array.from(document.querySelectorAll('section.page')).filter(s => s.offsetHeight).map(s => s.id)"
        assert browser.js(shown) == ["p_2f_"]
        browser.open(file.as_uri() + browser.js("document.querySelector('div.map a').hash"))
        assert browser.js(shown) == ["p_2f_block_2f_10.244.0.0_2f_26"]
        assert "shop/web-node-a-0" in browser.js("document.body.innerText")
        assert browser.js("document.documentElement.scrollWidth <= window.innerWidth")
