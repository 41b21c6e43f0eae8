from __future__ import annotations

from wavepp_worker.model.grammar.json_schemas import schemas_in


def titles(schema: object) -> set[str]:
    return {each["title"] for each in schemas_in(schema) if isinstance(each.get("title"), str)}


def test_schemas_are_found_under_every_keyword_that_holds_some() -> None:
    whole = {
        "title": "whole",
        "properties": {"enum": {"title": "a property"}, "title": {"title": "another"}},
        "patternProperties": {"^x": {"title": "by pattern"}},
        "$defs": {"const": {"items": {"title": "items"}}},
        "anyOf": [{"title": "first"}, {"not": {"title": "second"}}],
        "additionalProperties": True,
    }
    assert titles(whole) == {"whole", "a property", "another", "by pattern", "items", "first", "second"}


def test_values_are_no_schemas() -> None:
    value = {"title": "value"}
    assert titles({"const": value, "enum": [value], "default": value, "examples": [value]}) == set()
    assert list(schemas_in(True)) == []


def test_nesting_costs_no_stack() -> None:
    deep: dict[str, object] = {"title": "deepest"}
    for _ in range(10_000):
        deep = {"items": deep}
    assert titles(deep) == {"deepest"}
