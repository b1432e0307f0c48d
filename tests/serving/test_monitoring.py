"""Dashboard and alerts under deploy/: they name the metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml

from serving.metrics import REGISTRY
from tools.references import labels

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
TARGETS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the one of buckets."""


def series() -> dict[str, set[str]]:
    """Return the labels of every series of /metrics by its name."""
    found = {"up": TARGETS}
    for name, own in labels().items():
        suffixes = ("_bucket", "_sum", "_count") if name.endswith("duration_seconds") else ("",)
        found |= {name + suffix: {*own, *TARGETS} for suffix in suffixes}
    process = {sample.name for family in REGISTRY.collect() for sample in family.samples if "process" in family.name}
    return found | dict.fromkeys(process, TARGETS)


def expressions() -> Iterator[str]:
    """Yield the PromQL of all panels and alerts, with Grafana's variables replaced by values."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield re.sub(r"\$\w+", ".*", target["expr"].replace("$__rate_interval", "5m"))
    yield from (alert["expr"] for alert in ALERTS)


def names(expression: str) -> dict[str, set[str]]:
    """Return the series that a PromQL expression reads, each with the labels that it selects or groups it by."""
    found: dict[str, set[str]] = {}

    def visit(node: promql_parser.Expr, grouped: tuple[str, ...] = ()) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            grouped = (*grouped, *node.modifier.labels)
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            found.setdefault(node.name or "", set()).update(
                grouped, (matcher.name for matcher in node.matchers.matchers)
            )
        inner = [getattr(node, name, None) for name in ("expr", "lhs", "rhs")]
        for child in [*inner, *getattr(node, "args", ())]:
            if child is not None:
                visit(child, grouped)

    visit(promql_parser.parse(expression))
    return found


def test_names_of_an_expression() -> None:
    expression = 'sum by (le, code) (rate(zoo_x_bucket{job=~"zoo_y", route!="a"}[5m])) / (zoo_z) or vector(0)'
    assert names(expression) == {"zoo_x_bucket": {"le", "code", "job", "route"}, "zoo_z": set()}


@pytest.mark.slow
@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_expression_asks_for_series_and_labels_that_exist(expression: str) -> None:
    for name, used in names(expression).items():
        assert name in series()
        assert used <= series()[name]


def test_the_variables_of_the_dashboard_are_labels_that_exist() -> None:
    queries = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    for query in queries:
        name, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query).groups()
        assert label in series()[name]


def test_the_dashboard_shows_every_metric_of_the_service() -> None:
    shown = {name for expression in expressions() for name in names(expression)}
    assert {name for name in labels() if not any(one.startswith(name) for one in shown)} == set()


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
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert re.fullmatch(r"\d+[smh]", alert.get("for", "0s"))
        labelled = re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"]))
        assert set(labelled) <= set.union(TARGETS, *names(alert["expr"]).values())
    (job,) = PROMETHEUS["scrape_configs"]
    assert (DEPLOY / "prometheus" / PROMETHEUS["rule_files"][0]).is_file()
    assert f'up{{job="{job["job_name"]}"}} == 0' in [alert["expr"] for alert in ALERTS]
