"""The request that Dynamo has a worker answer to prove that it is well, where the user gives one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from wavepp_worker.dynamo.request_parser import RequestLimits, parse_request
from wavepp_worker.errors import ConfigError, InvalidRequest
from wavepp_worker.model.sampling_params import SamplingParams

if TYPE_CHECKING:
    from dynamo.common.backend.engine import GenerateRequest

_SETTING = "--health-check-payload (or DYN_HEALTH_CHECK_PAYLOAD)"
_EXAMPLE = '{"token_ids": [1], "stop_conditions": {"max_tokens": 1}}'
_ANY = 2**31 - 1
"""Limits of a model that nobody has looked at yet."""


def check_health_payload(value: str | None) -> None:
    """Refuse what Dynamo would pass over, and what no worker would answer, so that none would ever be ready.

    Args:
        value: JSON, or ``@`` and the file that has it; nothing leaves the worker its own request.

    Raises:
        ConfigError: names the setting.
    """
    from dynamo.common.backend.health_check import parse_health_check_payload_cli

    if not value:
        return
    try:
        payload = parse_health_check_payload_cli(value)
    except (ValueError, RecursionError):
        payload = None
    if payload is None:
        raise ConfigError(
            f"{_SETTING}: {value!r} is no object of JSON, nor @ and a file that has one; give one such as {_EXAMPLE}"
        )
    try:
        parse_request(cast("GenerateRequest", payload), RequestLimits(_ANY, _ANY, _ANY), SamplingParams())
    except InvalidRequest as error:
        raise ConfigError(
            f"{_SETTING}: no worker would answer it: {error}; give one such as {_EXAMPLE}"
        ) from error
