"""Dashboard and alerts under deploy/, and the tables of docs/: they name the metrics and settings that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.metrics import REGISTRY
from tools.serve_tables import DOCS, labels, metric_table, settings

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
TARGETS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the one of buckets."""
NO_METRICS = {
    *("sum", "min", "max", "by", "or", "rate", "increase", "histogram_quantile", "vector"),
    *("label_values", "instance", "collection", "code", "status", "stage", "method", "route", "le", "job"),
}
"""Functions and keywords of PromQL, and labels, in the expressions below."""
STRINGS = re.compile(r'"[^"]*"')


def series() -> dict[str, set[str]]:
    """Return the labels of every series of /metrics by its name."""
    found = {"up": TARGETS}
    for name, names in labels().items():
        suffixes = ("_bucket", "_sum", "_count") if name.endswith("duration_seconds") else ("",)
        found |= {name + suffix: {*names, *TARGETS} for suffix in suffixes}
    process = {sample.name for family in REGISTRY.collect() for sample in family.samples if "process" in family.name}
    return found | dict.fromkeys(process, TARGETS)


def expressions() -> Iterator[str]:
    """Yield the PromQL of all panels, variables and alerts."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query")
    yield from (alert["expr"] for alert in ALERTS)


def parse(expression: str) -> tuple[set[str], set[str]]:
    """Return the names of series in a PromQL expression, and its labels."""
    text = re.sub(r"\[[^\]]*\]", "", STRINGS.sub('""', expression))
    matched = {name for braces in re.findall(r"\{([^}]*)\}", text) for name in re.findall(r"(\w+)\s*[=!]", braces)}
    grouped = {name for names in re.findall(r"\bby \(([^)]*)\)", text) for name in re.findall(r"\w+", names)}
    listed = set(re.findall(r"label_values\(.*, (\w+)\)", text))
    words = set(re.findall(r"[a-z_][a-z0-9_]*", re.sub(r"\{[^}]*\}", "", text)))
    return words - NO_METRICS, matched | grouped | listed


def test_the_parser_finds_metrics_and_labels() -> None:
    expression = 'sum by (le, code) (rate(zoo_x_bucket{job=~"zoo_y", route!="a"}[5m])) / zoo_z or vector(0)'
    assert parse(expression) == ({"zoo_x_bucket", "zoo_z"}, {"le", "code", "job", "route"})
    assert parse('label_values(zoo_a{job=~"$job"}, route)') == ({"zoo_a"}, {"job", "route"})


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_expression_asks_for_series_and_labels_that_exist(expression: str) -> None:
    names, used = parse(expression)
    assert names
    assert names <= series().keys()
    assert used <= set.union(*(series()[name] for name in names))
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_every_metric_of_the_service() -> None:
    shown = set.union(*(parse(expression)[0] for expression in expressions()))
    missing = {name for name in labels() if not any(one.startswith(name) for one in shown)}
    assert missing == set()


def test_the_panels_of_the_dashboard_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        box = panel["gridPos"]
        cells = {(x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    sources = {json.dumps(panel["datasource"]) for panel in DASHBOARD["panels"] if panel["type"] != "row"}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}


def test_alerts_have_what_prometheus_expects() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(names) == len(set(names))
    for alert in ALERTS:
        assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert re.fullmatch(r"\d+[smh]", alert.get("for", "0s"))
        labelled = re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"]))
        assert set(labelled) <= parse(alert["expr"])[1] | TARGETS
    (job,) = PROMETHEUS["scrape_configs"]
    assert (DEPLOY / "prometheus" / PROMETHEUS["rule_files"][0]).is_file()
    assert f'up{{job="{job["job_name"]}"}} == 0' in [alert["expr"] for alert in ALERTS]


def between(page: str, name: str) -> Any:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", (DOCS / page).read_text(), re.DOTALL)
    return found and found[1]


def test_the_tables_of_settings_and_metrics_are_those_of_the_code() -> None:
    """`python -m tools.serve_tables` writes them."""
    assert between("serve.md", "settings") == settings()
    assert between("operate.md", "metrics") == metric_table()
