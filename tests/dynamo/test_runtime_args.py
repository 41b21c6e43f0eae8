from __future__ import annotations

import pytest
from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.dynamo.runtime_args import RuntimeArgs, add_runtime, take_runtime
from wavepp_worker.errors import ConfigError


def parsed(*words: str) -> RuntimeArgs:
    parser = Parser()
    add_runtime(parser)
    return take_runtime(vars(parser.parse_args(words)), "backend", "smol")


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
    with pytest.raises(ConfigError, match="--endpoint"):
        parsed("--endpoint", "a.b")


@pytest.mark.parametrize("port", ["70000", "-1", "x"])
def test_what_is_no_port_is_refused(port: str) -> None:
    assert parsed("--bootstrap-port", "65535").bootstrap_port == 65535
    with pytest.raises(ConfigError, match=f"^--bootstrap-port: '{port}' is not a port number"):
        parsed(f"--bootstrap-port={port}")
