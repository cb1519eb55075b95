"""The Grafana dashboard shows what is measured."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

from ray.util.metrics import Counter, Metric

from clients.actors import fleet as ray_fleet
from cluster.loggers import ray_metrics

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "cluster" / "grafana.json").read_text())
MEASURED = {
    f"ray_{metric.info['name']}{'_total' if isinstance(metric, Counter) else ''}": set(metric.info["tag_keys"])
    for module in (ray_metrics, ray_fleet)
    for metric in vars(module).values()
    if isinstance(metric, Metric)
}
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_it_shows_every_metric_of_raysim_and_none_that_there_is_not() -> None:
    assert len(MEASURED) == 8
    assert set(re.findall(r"\bray_raysim_\w+", " ".join(EXPRESSIONS))) == set(MEASURED)


def test_it_selects_and_groups_by_labels_that_there_are() -> None:
    for expression in EXPRESSIONS:
        names = re.findall(r"\bray_raysim_\w+", expression)
        labels = set().union(*(MEASURED[name] for name in names))
        used = re.findall(r"(\w+)=~", expression)
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            used += group.split(", ")
        assert not names or set(used) <= labels, expression
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            assert label in MEASURED[metric]


def test_no_panel_hides_another() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in panels) == 24
