from __future__ import annotations

import pytest
from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeConfig
from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.dynamo.runtime_args import RuntimeArgs, add_runtime, take_runtime
from wavepp_worker.errors import ConfigError


def parsed(*words: str) -> RuntimeArgs:
    parser = Parser()
    add_runtime(parser)
    return take_runtime(vars(parser.parse_args(words)), "agg", "smol")


def test_what_is_not_given_follows_from_the_role_and_the_model() -> None:
    runtime = parsed()
    assert (runtime.component, runtime.endpoint) == ("backend", "generate")
    assert (runtime.served_model_name, runtime.bootstrap_port) == ("smol", 0)


def test_dynamos_own_flags_are_kept_by_dynamos_names() -> None:
    options = vars(parsed("--event-plane", "zmq", "--bootstrap-port", "7000").options)
    assert options["event_plane"] == "zmq"
    assert "bootstrap_port" not in options


def test_an_endpoint_address_sets_all_three() -> None:
    runtime = parsed("--endpoint", "dyn://a.b.c")
    assert (runtime.namespace, runtime.component, runtime.endpoint) == ("a", "b", "c")
    assert parsed("--endpoint", "dyn://a.b.c", "--component", "d").component == "d"
    for wrong in ("a.b", "dyn://a", "dyn://"):
        with pytest.raises(ConfigError, match=r"--endpoint: .* should be NAME or dyn://"):
            parsed("--endpoint", wrong)


@pytest.mark.parametrize(
    ("port", "said"),
    [("70000", "at most 65535, not 70000"), ("-1", "at least 0, not -1"), ("x", "a whole number, not 'x'")],
)
def test_what_is_no_port_is_refused(port: str, said: str) -> None:
    assert parsed("--bootstrap-port", "65535").bootstrap_port == 65535
    with pytest.raises(ConfigError, match=f"^--bootstrap-port: should be {said}$"):
        parsed(f"--bootstrap-port={port}")


def test_dynamos_own_checks_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, said in (
        (["--engine-request-limit", "0"], "^--engine-request-limit: should be at least 1, not 0$"),
        (
            ["--output-modalities", "smell"],
            r"^--output-modalities \(or DYN_OUTPUT_MODALITIES\): should be text, not smell",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            parsed(*words)
    monkeypatch.setattr(DynamoRuntimeConfig, "validate", complain)
    with pytest.raises(ConfigError, match=r"^Dynamo minds$"):
        parsed()


def complain(config: DynamoRuntimeConfig) -> None:
    raise ValueError("Dynamo minds")


def test_a_bad_number_in_a_variable_of_dynamos_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ENGINE_REQUEST_LIMIT", "many")
    with pytest.raises(ConfigError, match=r"^DYN_ENGINE_REQUEST_LIMIT: has a value that .*'many'$"):
        parsed()


def test_another_role_is_told_what_runs_it() -> None:
    assert parsed("--disaggregation-mode", "agg").component == parsed("--disaggregation-mode", "pd").component
    with pytest.raises(
        ConfigError, match=r"^--disaggregation-mode: prefill is not what this module runs, which is agg; "
    ):
        parsed("--disaggregation-mode", "prefill")


@pytest.mark.parametrize(
    "longest", ["n" * 158, "n" + "-" * 52, "n" + "\u6f22" * 17], ids=["letters", "dashes", "CJK"]
)
def test_a_namespace_of_which_discovery_could_not_make_file_names_is_refused(longest: str) -> None:
    assert parsed("--namespace", longest, "--discovery-backend", "file").namespace == longest
    longer = longest + longest[-1] * 2
    with pytest.raises(ConfigError, match=r"^--namespace: .* too long for the file names of discovery"):
        parsed("--namespace", longer, "--discovery-backend", "file")
    assert parsed("--namespace", longer, "--discovery-backend", "etcd").namespace == longer


@pytest.mark.parametrize("flag", ["--namespace", "--component", "--endpoint"])
@pytest.mark.parametrize("name", ["*", "\u00e9", "_", "-"])
def test_a_name_that_no_metric_could_carry_is_refused(flag: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag}: .* has neither a letter from A to Z nor a digit"):
        parsed(f"{flag}={name}")
    parsed(f"{flag}={name}1", "--discovery-backend", "etcd")
