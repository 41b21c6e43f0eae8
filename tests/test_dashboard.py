"""The dashboard asks Prometheus for what workers, frontend and Dynamo export, under the labels that it has there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.exported_metrics import dynamos_names, exported, labels
from tests.support.page_commands import ROOT

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "wavepp.json").read_text())
SCRAPED = frozenset({"service", "replica"})
"""Labels from the targets' file that docs/operate.md has made."""
OF_DYNAMO = frozenset({"worker_type", "le"})
FUNCTIONS = frozenset({"histogram_quantile", "label_values", "max", "rate", "sum"})
SUFFIXES = re.compile(r"_(total|bucket|sum|count)$")


class Parsed(NamedTuple):
    """What an expression names: metrics, each with the labels that are matched there, and labels it groups by."""

    metrics: list[tuple[str, set[str]]]
    grouped: set[str]
    functions: set[str]


def parsed(expression: str) -> Parsed:
    """What of an expression in Prometheus's language is a name."""
    text = re.sub(r"\[[^\]]*\]", "", expression)
    grouped = {name.strip() for group in re.findall(r"\bby \(([^)]*)\)", text) for name in group.split(",")}
    text = re.sub(r"\bby \([^)]*\)", "", text)
    matchers: list[str] = []

    def keep(found: re.Match[str]) -> str:
        matchers.append(found[0])
        return f"#{len(matchers) - 1}#"

    text = re.sub(r'\{(?:[^{}"]|"[^"]*")*\}', keep, text)
    functions = set(re.findall(r"([A-Za-z_]\w*)\s*\(", text))
    text = re.sub(r"[A-Za-z_]\w*\s*\(", "(", text)
    metrics = []
    for name, matcher in re.findall(r"([A-Za-z_:][\w:]*)(?:#(\d+)#)?", text):
        matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', matchers[int(matcher)]) if matcher else []
        metrics.append((name, set(matched)))
    return Parsed(metrics, grouped, functions)


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


EXPRESSIONS = [
    pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in panels()
    for target in panel["targets"]
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_names_exported_metrics_and_their_labels(expression: str) -> None:
    found = parsed(expression)
    assert found.metrics
    assert found.functions <= FUNCTIONS
    for name, matched in found.metrics:
        if name.startswith("wavepp_"):
            assert name in labels(), f"{name} is not exported"
            assert matched | found.grouped <= labels()[name] | SCRAPED
        else:
            assert {name, SUFFIXES.sub("", name)} & dynamos_names(), f"{name} is not exported"
            assert matched | found.grouped <= OF_DYNAMO


def test_a_name_that_nobody_exports_is_found_wherever_it_stands() -> None:
    text = 'sum by (a, b) (rate(one{c=~"x{}y", d!="z"}[5m])) / histogram_quantile(0.5, two) > three{}'
    found = parsed(text)
    assert found.metrics == [("one", {"c", "d"}), ("two", set()), ("three", set())]
    assert found.grouped == {"a", "b"}
    assert found.functions == {"sum", "rate", "histogram_quantile"}


def test_what_a_panel_calls_its_lines_are_labels_that_they_have() -> None:
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= parsed(target["expr"]).grouped, panel["title"]


def test_the_dashboard_shows_all_our_metrics() -> None:
    shown = {name for each in EXPRESSIONS for name, _ in parsed(str(each.values[0])).metrics}
    missing = {name for name, samples in exported().items() if not shown & samples}
    assert missing == {"wavepp_decode_prompt_tokens_computed"}, "which is 0 unless a router is set up so"


def test_the_choice_of_replicas_is_of_metrics_that_every_worker_has() -> None:
    (replica,) = [each for each in DASHBOARD["templating"]["list"] if each["name"] == "replica"]
    names = re.findall(r"wavepp_\w+", replica["definition"])
    assert names
    assert set(names) <= labels().keys()
    assert replica["query"]["query"] == replica["definition"]


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)
