"""Flags that would do nothing, as a user types them; variables, which processes of several roles may share."""

from __future__ import annotations

import pytest
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.setting_names import flag_of, variable_of

Kind = type[PrefillArgs | DecodeArgs | AggArgs]

OF_QUEUES = "is of workers that take jobs from a queue; set --intake to nats or nats-alone, or leave it out"
OF_SENDERS = "is of workers that send prompts to a queue; set --remote-prefill to nats, or leave it out"
OF_PREFILL = "is where workers that prefill hand KV over, and a decode worker only takes it; leave it out"
ALONE: list[tuple[Kind, str, str, str]] = [
    (PrefillArgs, "nats_server", "nats://a:1", OF_QUEUES),
    (PrefillArgs, "intake_ahead", "3", OF_QUEUES),
    (PrefillArgs, "intake_attempts", "3", OF_QUEUES),
    (PrefillArgs, "intake_silence", "3", OF_QUEUES),
    (AggArgs, "nats_server", "nats://a:1", OF_SENDERS),
    (AggArgs, "max_local_prefill_length", "3", OF_SENDERS),
    (AggArgs, "max_prefill_queue_size", "3", OF_SENDERS),
    (AggArgs, "remote_prefill_patience", "3", OF_SENDERS),
    (AggArgs, "remote_prefill_endpoint", "a.b.c", OF_SENDERS),
    (DecodeArgs, "bootstrap_port", "5000", OF_PREFILL),
]
"""Settings that do nothing in a worker that is given no other."""


@pytest.mark.parametrize(
    ("kind", "name", "value", "why"), ALONE, ids=lambda each: getattr(each, "__name__", each)
)
def test_a_flag_that_would_do_nothing_is_refused_and_a_variable_is_not(
    kind: Kind, name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model", "/m", f"{flag_of(name)}={value}"]
    with pytest.raises(ConfigError) as caught:
        kind.parse(words)
    assert str(caught.value) == f"{flag_of(name)}: {why}"
    monkeypatch.setenv(variable_of(name), value)
    kind.parse(["--model", "/m"])
    kind.parse(words)  # which is what the launcher makes of the variable
    monkeypatch.setenv(variable_of(name), f"{value}{value}")
    with pytest.raises(ConfigError):
        kind.parse(words)


def test_what_says_the_default_is_taken() -> None:
    for kind, config, but in (
        (PrefillArgs, IntakeConfig, "intake"),
        (AggArgs, RemotePrefillConfig, "remote_prefill"),
    ):
        given = {
            name: field.default for name, field in config.model_fields.items() if field.default is not None
        }
        assert but in given
        kind.parse(["--model", "/m", *(f"{flag_of(name)}={value}" for name, value in given.items())])
    DecodeArgs.parse(["--model", "/m", "--bootstrap-port", "0"])


def test_all_count_beside_what_they_need() -> None:
    for kind, name, value, _ in ALONE:
        if kind is not DecodeArgs:
            beside = "--intake=nats" if kind is PrefillArgs else "--remote-prefill=nats"
            kind.parse(["--model", "/m", beside, f"{flag_of(name)}={value}"])
    assert AggArgs.parse(["--model", "/m", "--bootstrap-port", "5000"]).runtime.bootstrap_port == 5000


def test_no_setting_of_a_queue_is_forgotten() -> None:
    alone = {(kind, name) for kind, name, _, _ in ALONE}
    assert {(PrefillArgs, name) for name in IntakeConfig.model_fields} - alone == {(PrefillArgs, "intake")}
    assert {(AggArgs, name) for name in RemotePrefillConfig.model_fields} - alone == {
        (AggArgs, "remote_prefill")
    }


def test_a_port_that_differs_by_replica_is_a_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable_of("bootstrap_port"), "500{replica}")
    DecodeArgs.parse(["--model", "/m", "--bootstrap-port=5001"])
