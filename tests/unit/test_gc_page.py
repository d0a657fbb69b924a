"""The collector's page as a pure function of a view: what it says, where its links lead, what it never does."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from calico_gc.decide import Rules
from calico_gc.facts import KubeNode
from calico_gc.options import Options
from calico_gc.state import State
from calico_gc.view import View
from calico_gc.web import rows, words
from calico_gc.web.cells import PAGE_CELLS, Charts
from calico_gc.web.links import section
from calico_gc.web.onefile import one_file
from calico_gc.web.server import Router, Server, Sources
from calico_gc.web.site import NoSuchPage, Site, templates
from calico_gc.web.stored import PAGES, view_of_store

from calico_ipam.datastore.api import Create
from calico_ipam.datastore.sqlite import SQLiteStore
from calico_ipam.model.keys import BlockKey, ResourceKey
from calico_ipam.model.resource import IP_POOL, NODE, Resource
from tests.clock import LONG
from tests.gc_views import NOW, block, pool, reservation, small_view, suspect, view_of_state
from tests.kube_tools import wait_until
from tests.memory import MemoryStore

TEMPLATES = templates()


def site(view: View | None = None) -> Site:
    return Site(view or small_view(), TEMPLATES)


def text_of(html: str) -> str:
    """Return what a page says, without its tags."""
    reader = HTMLParser()
    said: list[str] = []
    reader.handle_data = said.append  # type: ignore[method-assign,assignment]  # a small reader
    reader.feed(re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL))
    return re.sub(r"\s+", " ", " ".join(said))


def links_of(html: str) -> list[str]:
    found: list[str] = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attrs: found.extend(  # type: ignore[method-assign]  # the same
        value or "" for name, value in attrs if name in ("href", "src", "action")
    )
    reader.feed(html)
    return found


def many_blocks(number: int) -> View:
    state = State()
    state.pools.put_pool(pool("p", "10.0.0.0/12"))
    for position in range(number):
        state.put_block(block(f"10.{position // 1024}.{position // 4 % 256}.{position % 4 * 64}/26", "n"), "1")
    return view_of_state(state)


# --- every page, and where it leads -------------------------------------------------------------------------


def test_every_link_of_every_page_leads_to_a_page() -> None:
    made = site()
    seen: set[str] = set()
    waiting = ["/"]
    while waiting:
        target = waiting.pop()
        if target in seen or target.startswith("#"):
            continue
        seen.add(target)
        parts = urlsplit(target)
        assert not parts.scheme and not parts.netloc, f"{target} leads elsewhere"
        waiting += links_of(made.document(made.page(parts.path, dict(parse_qsl(parts.query)))))
    there = {target if number == 1 else f"{target}?page={number}" for target, number in made.paths()}
    assert seen - {"/find"} == there | {"/block/10.244.3.0/26"}  # the damaged one is no block that was taken in


@pytest.mark.parametrize(
    "target",
    [
        "/nothing",
        "/block/10.9.9.0/26",
        "/pool/none",
        "/node/none",
        "/block",
        "/block/",
        "/block/10.244.0.0/26/..",
        "/../x",
    ],
)
def test_what_is_not_there_is_no_page(target: str) -> None:
    with pytest.raises(NoSuchPage):
        site().page(target)


@pytest.mark.parametrize("number", ["0", "2", "-1", "x", "", "9999999999", "1e3", "\N{SUPERSCRIPT TWO}"])
def test_page_numbers_that_are_none(number: str) -> None:
    with pytest.raises(NoSuchPage):
        site().page("/candidates", {"page": number})


def test_names_from_the_cluster_are_text_and_never_markup() -> None:
    evil = "<script>alert('x')</script>\"'&"
    state = State()
    state.pools.put_pool(pool("p", "10.0.0.0/24"))
    state.put_block(block("10.0.0.0/26", "n", 2, pod=evil, namespace=evil), "1")
    state.put_kube_node(KubeNode(evil))
    state.link_node(evil, evil)
    state.damaged[evil] = evil
    state.suspects["10.0.0.0/26", 0] = suspect("pod-not-found", 5)
    made = site(view_of_state(state, failing={(evil, evil): 1}, cluster_guid=evil))
    for target, number in made.paths():
        document = made.document(made.page(target, {"page": str(number)}))
        assert "<script>alert" not in document and "'x'" not in document, target
    found = made.document(made.page("/find", {"q": evil}))
    assert "<script>alert" not in found


# --- what it says ---------------------------------------------------------------------------------------------


def test_a_block_is_opened_into_its_addresses() -> None:
    view = small_view()
    found = {a.address: a for a in rows.addresses(view, view.blocks["10.244.0.0/26"])}
    assert [found[f"10.244.0.{n}"].state for n in (0, 1, 2, 3, 39, 40, 60, 61, 62)] == [
        *("held", "suspected", "suspected", "cooling", "free", "held", "reserved", "reserved", "free")
    ]
    assert (found["10.244.0.0"].holder, found["10.244.0.0"].age) == ("shop/web-node-a-0", "1 h")
    assert (found["10.244.0.3"].holder, found["10.244.0.3"].age) == ("released", "1 min 30 s")
    assert found["10.244.0.40"].holder == "vxlanTunnelAddress"
    assert found["10.244.0.1"].why == "the pod it was given to does not exist"
    page = text_of(site().page("/block/10.244.0.0/26").body)
    assert "10.244.0.41 \N{EN DASH} 10.244.0.59 free 19 addresses" in page
    assert "10.244.0.60 \N{EN DASH} 10.244.0.61 reserved 2 addresses" in page


def test_windows_reservations_are_reserved() -> None:
    state = State()
    made = block("10.0.0.0/30", "w").assign_address(
        block("10.0.0.0/30", "w").address(0), handle="windows-reserved-ipam-handle", attrs={"note": "windows"}
    )
    state.put_block(made, "1")
    view = view_of_state(state)
    assert rows.addresses(view, view.blocks["10.0.0.0/30"])[0].state == "reserved"


def test_candidates_say_why_and_what_comes_next() -> None:
    found = {row.address: row for row in rows.candidates(small_view())}
    assert {a: (row.state, row.left) for a, row in found.items()} == {
        "10.244.0.71": ("held", "until every address of its handle is confirmed"),
        "10.244.0.2": ("confirmed", "at the next pass"),
        "10.244.1.0": ("failing", "tried again (3 failures)"),
        "10.244.0.1": ("candidate", "8 min 20 s"),
    }
    first = found["10.244.0.1"]
    assert (first.first, first.last, first.looks) == ("2026-08-22 10:08:20", "2026-08-22 10:14:30", 2)
    assert next(iter(found)) == "10.244.0.71", "what is stuck comes first"


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"options": Options(dry_run=True)}, "never: this is a dry run"),
        ({"busy": frozenset({("release", "10.244.0.0/26")})}, "now"),
        ({}, "at the next pass"),
    ],
)
def test_a_confirmed_leak_says_what_happens_to_it(change: dict[str, Any], left: str) -> None:
    found = rows.candidates(replace(small_view(), **change))
    assert next(row.left for row in found if row.address == "10.244.0.2") == left


def test_a_candidate_without_grace_is_never_released() -> None:
    view = small_view()
    key = ("10.244.0.0/26", 1)
    view = replace(view, suspects={key: suspect("pod-not-found", 400, grace=0.0)})
    assert rows.candidates(view)[0].left == "never: the grace period is 0"
    view = replace(view, suspects={key: suspect("pod-not-found", 4000)})
    assert rows.candidates(view)[0].left == "at the next look"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ready": False}, "The datastore is locked"),
        ({"in_sync": False}, "Not everything has been listed yet"),
        ({"leader": False}, "Another instance is the leader"),
        ({"options": Options(dry_run=True)}, "This is a dry run"),
        ({"options": Options(Rules(leak_grace=0.0))}, "The leak grace period is 0"),
        ({"options": Options(Rules(leak_grace=None))}, "The leak grace period is absent"),
        ({}, "the collector may act"),
    ],
)
def test_the_first_page_says_why_nothing_is_done(change: dict[str, Any], said: str) -> None:
    assert said in text_of(site(replace(small_view(), **change)).page("/").body)


def test_nodes_with_suspects_come_first_and_say_what_they_are() -> None:
    view = replace(small_view(), nodes={**small_view().nodes, "bare": "", "lost": "lost"})
    found = {row.name: row for row in rows.node_rows(view)}
    assert {name: row.standing for name, row in found.items()} == {
        **dict.fromkeys(("node-a", "node-b", "node-c"), "present"),
        "node-gone": "gone, being cleaned up",
        "bare": "not Kubernetes\N{RIGHT SINGLE QUOTATION MARK}",
        "lost": "gone from Kubernetes",
        "node-x": "unknown to Calico",
    }
    assert next(iter(found)) == "node-a"
    assert (found["node-x"].in_use, found["node-x"].borrowed, found["node-x"].blocks) == (2, 2, 0)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("10.244.0.7", ["10.244.0.7"]),
        ("web-node-gone-4", ["10.244.1.4"]),
        ("SHOP/WEB-node-gone-4", ["10.244.1.4"]),
        ("vxlan-tunnel-addr", ["10.244.0.40"]),
        (" node-c ", [f"fd00:10::{n}" for n in ("", *"12345678")] + [f"172.30.0.{n}" for n in range(3)]),
        ("nobody-has-this", []),
        (" ", []),
    ],
)
def test_search(wanted: str, found: list[str]) -> None:
    assert [str(allocation.address) for _, allocation in rows.matching(small_view(), wanted)] == found


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (59.6, "1 min"),
        (450, "7 min 30 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (1e6, "11 d 13 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


# --- maps -------------------------------------------------------------------------------------------------------


def test_a_map_has_a_place_for_every_block_of_a_pool() -> None:
    chart = Charts(small_view()).chart("default-ipv4")
    cells = chart.overview()
    assert (chart.dense, len(cells), chart.run()) == (True, 64, 1)
    assert [cell.name for cell in cells[:3]] == ["10.244.0.0/26", "10.244.0.64/26", "10.244.0.128/26"]
    assert cells[0].title == "10.244.0.0/26: 19 of 64 held, 2 suspected, 2 cooling, node-a"
    assert cells[3].marks == "none"
    marks = [cell.marks.split() for cell in cells]
    assert "sus" in marks[0] and "cold" in marks[0] and marks[0][0] == "f2"
    assert (marks[1][0], marks[2][0]) == ("f5", "f0")
    assert (marks[5][1], marks[8][1], marks[12]) == ("nobody", "virtual", ["bad"])
    assert marks[1][1] == marks[2][1] != marks[0][1], "one node has one colour"


def test_sparse_pools_and_blocks_without_a_pool_are_drawn_without_holes() -> None:
    charts = {chart.name: chart for chart in Charts(small_view()).charts()}
    assert [(charts[n].dense, charts[n].places) for n in ("default-ipv6", "no_ippool")] == [(False, 1), (False, 1)]
    assert charts["default-ipv6"].every_place == 1 << 58


def test_blocks_of_another_size_than_their_pools_are_drawn_in_order() -> None:
    state = State()
    state.pools.put_pool(pool("p", "10.0.0.0/20"))
    for cidr in ("10.0.2.0/28", "10.0.1.0/26"):
        state.put_block(block(cidr, "n", 1), "1")
    chart = Charts(view_of_state(state)).chart("p")
    assert [cell.name for cell in chart.overview()] == ["10.0.1.0/26", "10.0.2.0/28"]


def test_a_large_pool_is_one_page_of_runs_and_pages_of_blocks() -> None:
    view = many_blocks(4096)
    chart = Charts(view).chart("p")
    assert (chart.places, chart.run(), chart.pages) == (16384, 16, 16)
    overview = chart.overview()
    assert len(overview) == PAGE_CELLS
    assert overview[0].title == "10.0.0.0/26 to 10.0.3.192/26: 0 of 1024 held, 16 of 16 blocks claimed, n"
    assert chart.page_of(1023) == 1 and chart.page_of(1024) == 2
    names = [cell.name for number in range(1, 17) for cell in chart.page(number)]
    assert len(names) == len(set(names)) == 16384
    made = site(view)
    assert made.page("/pool/p", {"page": "16"}).path == "/pool/p?page=16"
    with pytest.raises(NoSuchPage):
        made.page("/pool/p", {"page": "17"})


def test_reserved_addresses_are_counted_on_the_pools_page() -> None:
    state = State()
    state.pools.put_pool(pool("p", "10.0.0.0/24"))
    state.reservations["r"] = reservation("10.0.0.0/28")
    assert "16 reserved" in text_of(site(view_of_state(state)).page("/pool/p").body)


# --- one file -----------------------------------------------------------------------------------------------------


def test_one_file_holds_every_page_and_leads_nowhere_else() -> None:
    view = small_view()
    text = "".join(one_file(view, TEMPLATES))
    targets = {link for link in links_of(text)}
    assert targets and all(link.startswith("#") for link in targets)
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    assert {link.removeprefix("#") for link in targets} <= ids
    assert {section(t if n == 1 else f"{t}?page={n}") for t, n in Site(view, TEMPLATES).paths()} <= ids
    assert "<form" not in text
    assert text.rindex('class="page front"') > text.rindex('class="page"'), "what is shown at first comes last"


def test_one_file_of_a_large_cluster_opens_what_is_of_interest_and_says_so() -> None:
    view = small_view()
    text = "".join(one_file(view, TEMPLATES, most_blocks=3))
    assert "This file holds the addresses of 3 blocks" in text_of(text)
    opened = [cidr for cidr in view.blocks if f'id="{section(f"/block/{cidr}")}"' in text]
    assert opened == ["10.244.0.0/26", "10.244.0.64/26", "10.244.1.0/26"], "those with suspects"


# --- served ---------------------------------------------------------------------------------------------------------


def sources(known: View | None = None, **more: Any) -> Sources:
    given = {
        "view": lambda: known,
        "metrics": lambda: "m 1\n",
        "live": str,
        "ready": lambda: "waits",
        "table": lambda: "| table |",
        **more,
    }
    return Sources(**given)


@contextmanager
def served(found: Sources) -> Iterator[HTTPConnection]:
    server = Server("127.0.0.1", 0, found)
    server.start()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        yield connection
    finally:
        connection.close()
        server.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "body"),
    [
        ("GET", "/", 200, "text/html; charset=utf-8", "<h1>Pools</h1>"),
        ("GET", "/block/10.244.0.0/26", 200, "text/html; charset=utf-8", "Block 10.244.0.0/26"),
        ("GET", "/nodes?page=77", 404, "text/html; charset=utf-8", "Not here"),
        ("GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", "m 1\n"),
        ("GET", "/healthz", 200, "text/plain; charset=utf-8", "ok\n"),
        ("GET", "/readyz", 503, "text/plain; charset=utf-8", "waits\n"),
        ("GET", "/liveness", 200, "text/plain; charset=utf-8", "| table |"),
        ("GET", "/readiness", 503, "text/plain; charset=utf-8", "| table |"),
        ("HEAD", "/", 200, "text/html; charset=utf-8", ""),
        ("POST", "/", 501, "text/html;charset=utf-8", ""),
        ("DELETE", "/block/10.244.0.0/26", 501, "text/html;charset=utf-8", ""),
    ],
)
def test_answers(method: str, path: str, status: int, kind: str, body: str) -> None:
    with served(sources(small_view())) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode()
    assert (answer.status, answer.headers["Content-Type"]) == (status, kind)
    assert body in text
    if kind == "text/html; charset=utf-8":
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy


@pytest.mark.parametrize(
    ("client", "local"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False), ("fe80::1%eth0", False)],
)
def test_in_upstreams_place_only_this_host_sees_the_page(client: str, local: bool) -> None:
    """Its port is open to everybody, since upstream's is; the page has no login."""
    router = Router(replace(sources(small_view()), page_for_all=False))
    assert int(router.answer("/", client).status) == (200 if local else 403)
    assert [int(router.answer(path, client).status) for path in ("/metrics", "/healthz")] == [200, 200]
    assert int(Router(sources(small_view())).answer("/", client).status) == 200, "who listens elsewhere was told to"


def test_before_the_first_view_there_is_no_page() -> None:
    with served(sources(None)) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().status == 503


def test_a_page_that_cannot_be_made_harms_only_its_request(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> View:
        raise RuntimeError("secret detail")

    with served(sources(view=broken)) as connection:
        connection.request("GET", "/")
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 500 and "secret" not in text and "Traceback" not in text
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
    assert "secret detail" in caplog.text


def test_a_client_that_goes_away_is_no_news(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for it; the collector's log is read by people."""
    caplog.set_level("DEBUG", "calico_gc.web.server")
    server = Server("127.0.0.1", 0, sources())
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
            client.sendall(b"GET / HT")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
        wait_until(lambda: "broke" in caplog.text, LONG, "the server to notice")
    finally:
        server.close()
    assert capsys.readouterr().err == ""


def test_pages_show_a_new_view_once_the_old_one_is_old() -> None:
    views = iter(
        [small_view(), replace(small_view(), cluster_guid="second"), replace(small_view(), cluster_guid="third")]
    )
    kept = Router(sources(view=lambda: next(views)), fresh=3600)
    assert kept.answer("/").body == kept.answer("/").body
    always = Router(sources(view=lambda: next(views)), fresh=0)
    assert "second" in always.answer("/").body and "third" in always.answer("/").body


@pytest.mark.parametrize(
    ("bound", "asked"), [("::1", ["::1"]), ("127.0.0.1", ["127.0.0.1"]), ("", ["::1", "127.0.0.1"])]
)
def test_a_server_listens_on_both_families(bound: str, asked: list[str]) -> None:
    """All addresses are those of both, as upstream's ports are: the kubelet of an IPv6 cluster probes them by IPv6."""
    server = Server(bound, 0, sources(small_view()))
    server.start()
    try:
        for host in asked:
            connection = HTTPConnection(host, server.port, timeout=20)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        server.close()


def test_the_view_of_the_tests_is_as_old_as_it_says() -> None:
    assert words.clock_time(NOW.wall) == "2026-08-22 10:15:00"


# --- of a datastore, without a collector --------------------------------------------------------------------------


def test_a_datastore_has_the_same_page_without_what_only_a_collector_knows() -> None:
    store = MemoryStore()
    for resource in (pool("one", "10.0.0.0/24"), pool("two", "10.1.0.0/24"), reservation("10.0.0.60/31")):
        store.commit(Create(ResourceKey(resource.kind, resource.name), resource))
    node = Resource(
        NODE, "n", {"metadata": {"name": "n"}, "spec": {"orchRefs": [{"orchestrator": "k8s", "nodeName": "k"}]}}
    )
    store.commit(Create(ResourceKey(NODE, "n"), node))
    for cidr in ("10.0.0.0/26", "10.1.0.0/26", "10.9.0.0/26"):
        made = block(cidr, "n", 2)
        store.commit(Create(BlockKey(made.cidr), made))
    view = view_of_store(store, NOW.wall)
    text = "".join(one_file(view, TEMPLATES, origin="my store", pages=PAGES))
    said = text_of(text)
    assert "10.0.0.0/24, blocks of /26" in said and "blocks without a pool" in said
    assert "10.0.0.60 \N{EN DASH} 10.0.0.61 reserved" in said and "shop/web-n-1" in said
    assert not {"Candidates", "Actions", "Handles"} & set(re.findall(r">([A-Z][a-z]+)</a>", text))
    assert "the collector may act" not in said and "confirmed" not in said
    assert {link.removeprefix("#") for link in links_of(text)} <= set(re.findall(r'\bid="([^"]+)"', text))
    assert [row.standing for row in rows.node_rows(view)] == ["present"]
    only = view_of_store(store, NOW.wall, "two")
    assert (set(only.blocks), set(only.pools)) == ({"10.1.0.0/26"}, {"two"})


def test_ipamctl_writes_it(tmp_path: Path) -> None:
    file, page = tmp_path / "store" / "ipam.db", tmp_path / "map.html"
    with SQLiteStore(str(file)) as store:
        store.commit(Create(ResourceKey(IP_POOL, "one"), pool("one", "10.0.0.0/24")))
        made = block("10.0.0.0/26", "n", 2)
        store.commit(Create(BlockKey(made.cidr), made))
    program = Path(sys.executable).with_name("ipamctl")
    arguments = [str(program), "ipam", "map", "--html", str(page), f"--datastore=sqlite://{file}"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "shop/web-n-1" in page.read_text()


def test_every_kind_of_action_is_told_in_words_when_it_fails() -> None:
    kinds = ("release", "thaw", "give-back", "node", "delete-node", "labels", "handles", "look")
    failing = {(kind, "x"): 2 if kind == "node" else 1 for kind in kinds}
    said = text_of(site(replace(small_view(), failing=failing)).page("/problems", {}).body)
    assert set(kinds) == set(words.ATTEMPTS)
    for kind in kinds:
        times = "2 times" if kind == "node" else "1 time"
        assert f"{words.attempt(kind)} x failed {times} in a row" in said
