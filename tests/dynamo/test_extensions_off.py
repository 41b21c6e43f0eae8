"""Where Dynamo's frontend drops ``nvext``, what the proxy would carry in it, and salts, are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from wavepp_worker.dynamo.extensions_off import extensions_are_off, lost_without_extensions

from tests.support.proxied_frontend import proxy_before

LOST: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({}, {"logit_bias": {"5": 1}}, "logit_bias is not supported here"),
    ({"x-tenant-id": "a"}, {}, "the header x-tenant-id is not supported here"),
    ({}, {"nvext": {"cache_salt": "a"}}, "nvext.cache_salt is not supported here"),
]


@pytest.mark.parametrize(("headers", "body", "said"), LOST)
def test_what_would_be_lost_is_refused_by_name_with_the_variable(
    headers: dict[str, str], body: dict[str, Any], said: str
) -> None:
    async def answers(request: web.BaseRequest) -> web.Response:
        return web.json_response({})

    async def asked(extensions: bool) -> tuple[int, str]:
        async with proxy_before(answers, extensions=extensions) as (proxy, session):
            url = f"http://127.0.0.1:{proxy.port}/v1/completions"
            async with session.post(url, json={"prompt": "a", **body}, headers=headers) as answer:
                return answer.status, (await answer.json()).get("message", "")

    status, sentence = asyncio.run(asked(False))
    assert status == 400
    assert sentence.startswith(said)
    assert "DYN_DISABLE_FRONTEND_NVEXT" in sentence
    assert asyncio.run(asked(True))[0] == 200


def test_what_reaches_workers_all_the_same_is_not_refused() -> None:
    body = {"cache_salt": "a", "logit_bias": {}, "nvext": {"annotations": ["a:b"], "cache_salt": None}}
    assert lost_without_extensions({"x-tenant-id": ""}, body) is None
    assert lost_without_extensions({}, [1]) is None


@pytest.mark.parametrize(
    ("value", "off"), [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("", False)]
)
def test_the_variable_is_read_as_dynamo_reads_it(value: str, off: bool) -> None:
    assert extensions_are_off({"DYN_DISABLE_FRONTEND_NVEXT": value}) is off
    assert not extensions_are_off({})
