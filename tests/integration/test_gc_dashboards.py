"""Dashboard and alerts: every expression is evaluated by a real Prometheus on what the collector really shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
import yaml
from calico_gc import intake
from calico_gc.decide import Rules
from calico_gc.intake import Change
from calico_gc.metrics import Metrics
from calico_gc.node_sweep import Swept
from calico_gc.options import HandleOptions, Options
from calico_gc.view import view_of
from calico_gc.web.server import Server, Sources

from calico_ipam.datastore.api import Damaged
from calico_ipam.model.handle import Handle
from calico_ipam.model.keys import HandleKey
from tests.clock import LONG
from tests.gc_things import NETWORK, add_block, pod_attrs, pool, put, reservation, running_pod, tunnel_attrs
from tests.gc_world import World
from tests.kube_tools import wait_until
from tests.ports import free_port
from tests.shared import REPOSITORY

FOLDER = REPOSITORY / "gc" / "dashboards"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
DOCUMENT = (REPOSITORY / "docs" / "gc.md").read_text()
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
#: what a dashboard's variables stand for in a test
VARIABLES = {"$ippool": ".*", "$node": ".*", "$__rate_interval": "1m"}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not there: apt-get install prometheus")
    return found


# --- a collector that has something to show ---------------------------------------------------------------------


def busy_world() -> World:
    """Return a collector that has released, held, repaired and refused something, and suspects something."""
    options = Options(rules=Rules(leak_grace=60.0), handles=HandleOptions(grace=60.0, observations=2, rate=0.0))
    world = World(options=options)
    pool(world, "pool-1", "10.0.0.0/24", 28)
    pool(world, "pool-2", "10.1.0.0/24", 28)
    reservation(world, "r", "10.0.0.128/28")
    for node in ("n1", "n2"):
        world.node(node)
    running_pod(world, "alive", "n1", "10.0.0.0")
    held = {
        0: (f"{NETWORK}.alive", pod_attrs("n1", "alive")),
        1: (f"{NETWORK}.dead", pod_attrs("n1", "dead")),
        2: (f"{NETWORK}.alive", pod_attrs("n1", "dead-too")),  # its handle has an address that is in use
    }
    add_block(world, "10.0.0.0/28", "n1", held, cooling={5: 1.0})
    add_block(world, "10.0.0.16/28", "n1")
    add_block(world, "10.0.0.32/28", "n1")
    add_block(world, "10.1.0.0/28", "n2", {3: (f"{NETWORK}.borrowed", pod_attrs("n1", "alive"))})
    add_block(world, "10.1.0.16/28", "gone", {0: ("vxlan-tunnel-addr-gone", tunnel_attrs("gone"))})
    put(world, HandleKey(f"{NETWORK}.orphan"), Handle(f"{NETWORK}.orphan", {"10.0.0.0/28": 1}))
    world.start()
    world.run(400.0)
    running_pod(world, "leaks", "n2", "10.1.0.4")
    add_block(world, "10.1.0.32/28", "n2", {4: (f"{NETWORK}.leaks", pod_attrs("n2", "leaks"))})
    world.settle()
    world.no_pod("default", "leaks")
    world.changed(Change(intake.DAMAGED, "/x", Damaged(None, "/x", "not JSON")))
    world.settle()
    return world


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    world = busy_world()
    metrics = Metrics(lambda: view_of(world.controller))
    for phase in ("sync", "release", "handles"):
        metrics.timed(phase, 0.2)
    swept = Swept("n1", world.clock.now(), 1000.0)
    page = Server("127.0.0.1", 0, Sources(str, str, metrics=metrics.page))
    node = Server("127.0.0.1", 0, Sources(str, str, metrics=swept.metrics))
    page.start()
    node.start()
    with Prometheus(tmp_path_factory.mktemp("prometheus"), [page.port, node.port]) as server:
        yield server
    page.close()
    node.close()


class Prometheus:
    """A server that scrapes once a second and knows our alerts."""

    def __init__(self, folder: Path, targets: list[int]) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._http = urllib3.PoolManager(retries=False, timeout=20.0)
        job = {"job_name": "calico", "static_configs": [{"targets": [f"127.0.0.1:{t}" for t in targets]}]}
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [job],
            "rule_files": [str(FOLDER / "alerts.yaml")],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self) -> Prometheus:
        try:
            wait_until(self._scraped, 2 * LONG, "three scrapes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._http.clear()

    def _scraped(self) -> bool:
        assert self._process.poll() is None
        try:
            found = self.query("count_over_time(up[1m]) >= 3 and up == 1")
        except urllib3.exceptions.HTTPError:
            return False
        return len(found) == 2

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = self._http.request("GET", f"{self._url}/api/v1/query?{urlencode({'query': expression})}")
        document: dict[str, Any] = {"status": "starting", "data": {"result": []}}
        if answer.status != 503:
            document = json.loads(answer.data)
        assert document["status"] in ("success", "starting"), f"{expression}: {document.get('error')}"
        found: list[dict[str, Any]] = document["data"]["result"]
        return found

    def shown(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression shows; one scrape that came too late makes everything vanish until the next."""
        found: list[dict[str, Any]] = wait_until(lambda: self.query(expression), LONG, expression)
        return found

    def get(self, path: str) -> Any:
        return json.loads(self._http.request("GET", f"{self._url}{path}").data)["data"]


def filled_in(expression: str, chosen: Mapping[str, str] = MappingProxyType({})) -> str:
    for name, value in {**VARIABLES, **chosen}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bipam_[a-z_]+", expression))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=[f"{t}-{i}" for i, (t, _) in enumerate(EXPRESSIONS)])
def test_every_panel_shows_something(prometheus: Prometheus, title: str, expression: str) -> None:
    found = prometheus.shown(filled_in(expression))
    assert not [sample for sample in found if sample["value"][1] == "NaN" and title != "Duration"]


def test_every_variable_offers_something_to_choose(prometheus: Prometheus) -> None:
    offered = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            [(metric, label)] = re.findall(r"^label_values\((\w+), (\w+)\)$", variable["definition"])
            offered[variable["name"]] = {sample["metric"][label] for sample in prometheus.shown(metric)}
    assert offered == {"ippool": {"pool-1", "pool-2"}, "node": {"n1", "n2"}}


@pytest.mark.parametrize("chosen", [("pool-1", "n1"), ("(pool-1|pool-2)", "(n1|n2)")], ids=["one", "several"])
def test_every_expression_takes_what_is_chosen(prometheus: Prometheus, chosen: tuple[str, str]) -> None:
    """As Grafana fills in one value, or several of a variable that may be many."""
    for _, expression in EXPRESSIONS:
        prometheus.query(filled_in(expression, dict(zip(("$ippool", "$node"), chosen, strict=True))))


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_is_about_series_that_there_are(prometheus: Prometheus, rule: Mapping[str, Any]) -> None:
    names = metrics_in(rule["expr"])
    assert names
    for name in names:
        assert prometheus.shown(name), name
    prometheus.query(rule["expr"])


def test_the_numbers_are_those_of_the_collector(prometheus: Prometheus) -> None:
    def value(expression: str) -> float:
        [sample] = prometheus.shown(expression)
        return float(sample["value"][1])

    assert value('sum by (ippool) (ipam_allocations_in_use{ippool="pool-1"})') == 2
    assert value("sum(ipam_allocations_gc_reclamations)") == 2  # "dead", and one that its living pod does not report
    assert value("sum(ipam_allocations_gc_candidates)") == 2
    assert value('ipam_gc_confirmed_leaks{state="held"}') == 1
    assert value('sum(ipam_gc_nodes_released_total{result="ok"})') == 1
    assert value('sum(ipam_gc_handle_actions_total{class="orphan", result="ok"})') == 1
    assert value("ipam_gc_damaged_objects") == 1
    dashboard = dict(EXPRESSIONS)
    pools = prometheus.shown(filled_in(dashboard["Addresses that can be assigned"]))
    assert {s["metric"]["ippool"]: s["value"][1] for s in pools} == {"pool-1": "238", "pool-2": "255"}


def test_prometheus_takes_the_rules(prometheus: Prometheus) -> None:
    [group] = prometheus.get("/api/v1/rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == {rule["alert"] for rule in RULES}
    wait_until(lambda: all(r["health"] == "ok" for g in prometheus.get("/api/v1/rules")["groups"] for r in g["rules"]))


# --- when alerts fire -------------------------------------------------------------------------------------------

ALIVE = 'ipam_gc_leader{instance="i", job="j"}'
#: alert -> (series under which it fires, at, series under which it does not)
CASES: Mapping[str, tuple[Mapping[str, str], str, Mapping[str, str]]] = {
    "CalicoIPAMLeaksNotReclaimed": (
        {'ipam_allocations_gc_candidates{ippool="p", node="n"}': "2x60"},
        "50m",
        {'ipam_allocations_gc_candidates{ippool="p", node="n"}': "2x29 0 2x60"},
    ),
    "CalicoIPAMLeaksSteadily": (
        {'ipam_allocations_gc_reclamations{ippool="p", node="n"}': "0+1x480"},
        "7h30m",
        {'ipam_allocations_gc_reclamations{ippool="p", node="n"}': "0+1x10 10x480"},
    ),
    "CalicoIPAMLeaksHeld": (
        {'ipam_gc_confirmed_leaks{state="held"}': "1x90"},
        "70m",
        {'ipam_gc_confirmed_leaks{state="pending"}': "1x90"},
    ),
    "CalicoIPAMCollectorSilent": (
        {ALIVE: "1x60", **{f'ipam_gc_{n}{{instance="i", job="j"}}': v for n, v in
         (("last_success_timestamp_seconds", "0x60"), ("leak_grace_seconds", "900x60"))}},
        "21m",
        {ALIVE: "0x60", **{f'ipam_gc_{n}{{instance="i", job="j"}}': v for n, v in
         (("last_success_timestamp_seconds", "0x60"), ("leak_grace_seconds", "900x60"))}},
    ),
    "CalicoIPAMCollectorAbsent": ({ALIVE: "0x60"}, "15m", {ALIVE: "1x60"}),
    "CalicoIPAMOrphanHandlesRise": (
        {'ipam_gc_handles{class="orphan"}': "1001+1x120"}, "100m", {'ipam_gc_handles{class="orphan"}': "3000-1x120"},
    ),
    "CalicoIPAMPoolNearlyFull": (
        {'ipam_allocations_in_use{ippool="p", node="n"}': "230x60", 'ipam_ippool_size{ippool="p"}': "256x60",
         'ipam_ippool_reserved{ippool="p"}': "16x60"},
        "15m",
        {'ipam_allocations_in_use{ippool="p", node="n"}': "230x60", 'ipam_ippool_size{ippool="p"}': "256x60",
         'ipam_ippool_reserved{ippool="p"}': "0x60"},
    ),
    "CalicoIPAMObjectsDamaged": ({"ipam_gc_damaged_objects": "1x60"}, "20m", {"ipam_gc_damaged_objects": "0x60"}),
    "CalicoIPAMNodeResidue": (
        {'ipam_gc_node_residue{kind="veth", instance="i"}': "3x1500"},
        "1441m",
        {'ipam_gc_node_residue{kind="veth", instance="i"}': "0x1500"},
    ),
}  # fmt: skip  # a table


def test_every_alert_has_its_case() -> None:
    assert set(CASES) == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("alert", sorted(CASES))
def test_an_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path, alert: str) -> None:
    firing, at, quiet = CASES[alert]

    def case(series: Mapping[str, str], number: int) -> dict[str, Any]:
        inputs = [{"series": name, "values": values} for name, values in series.items()]
        expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
        return {
            "interval": "1m",
            "input_series": inputs,
            "promql_expr_test": [
                {"expr": expression, "eval_time": at, "exp_samples": [{"labels": "{}", "value": number}]}
            ],
        }

    document = {
        "rule_files": [str(FOLDER / "alerts.yaml")],
        "evaluation_interval": "1m",
        "tests": [case(firing, 1), case(quiet, 0)],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- shape ------------------------------------------------------------------------------------------------------


def test_panels_do_not_overlap_and_have_what_grafana_wants() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert [v["name"] for v in DASHBOARD["templating"]["list"]] == ["datasource", "ippool", "node"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)


def test_the_dashboard_is_what_grafana_imports() -> None:
    """As its model of a dashboard of this schema asks for: what is missing or unknown is dropped without a word."""
    needed = {"uid", "title", "schemaVersion", "version", "time", "templating", "annotations", "panels", "timezone"}
    assert needed <= set(DASHBOARD)
    assert 36 <= DASHBOARD["schemaVersion"] <= 39, "from Grafana 9 on; a newer one is not migrated by older servers"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", DASHBOARD["uid"]) and isinstance(DASHBOARD["version"], int)
    assert "id" not in DASHBOARD and "__inputs" not in DASHBOARD, "both would tie it to one server"
    assert set(DASHBOARD["time"]) == {"from", "to"}
    for panel in DASHBOARD["panels"]:
        assert {"id", "type", "title", "gridPos"} <= set(panel), panel
        assert all(isinstance(panel["gridPos"][side], int) for side in "xywh")
        if panel["type"] == "row":
            assert panel["collapsed"] is False and panel["panels"] == [] and panel["gridPos"]["w"] == 24
            continue
        assert panel["type"] in ("stat", "timeseries")
        assert {"defaults", "overrides"} == set(panel["fieldConfig"])
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters)) and letters[0] == "A"
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            variables = set(re.findall(r"\$\{?(\w+)", target["expr"] + target["legendFormat"]))
            assert variables <= {"ippool", "node", "__rate_interval", "__range", "__interval"}, target
        assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "percentunit", "s")
        first, *steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [{"value": None}])
        levels = [step["value"] for step in steps]
        assert first["value"] is None and levels == sorted(levels), panel["title"]
        assert all(isinstance(level, int | float) for level in levels)
    for variable in DASHBOARD["templating"]["list"]:
        assert variable["type"] in ("datasource", "query") and variable["query"]
        if variable["type"] == "query":
            assert variable["definition"] == variable["query"]["query"] and variable["includeAll"]
            assert variable["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert variable["current"]["value"] == "$__all" and variable["refresh"] in (1, 2)
        else:
            assert variable["query"] == "prometheus"


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_says_what_to_do(rule: Mapping[str, Any]) -> None:
    runbook = rule["annotations"]["runbook"]
    assert runbook == f"docs/gc.md#{rule['alert'].lower()}"
    assert re.search(rf"^#+ {rule['alert']}$", DOCUMENT, re.M)
