from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.dynamo.agg import AggArgs
from wavepp_worker.dynamo.frontend import FrontendArgs
from wavepp_worker.dynamo.meeting_places import check_meeting_places
from wavepp_worker.errors import ConfigError

STORE, BROKER = "DYN_FILE_KV", "DYN_ZMQ_BROKER_URL"


@pytest.mark.parametrize(
    "url",
    [
        "garbage",
        "tcp://127.0.0.1:5",
        "xsub=tcp://127.0.0.1:5",
        "xsub= , xpub=tcp://127.0.0.1:5",
        "xsub=a , xpub=b",
        "xsub=tcp://127.0.0.1 , xpub=tcp://127.0.0.1:5",
        "xsub=tcp://127.0.0.1:5 , xpub=tcp://127.0.0.1:6 , xpub=tcp://127.0.0.1:7",
    ],
)
def test_what_says_of_no_broker_where_it_is_is_refused(url: str) -> None:
    for events in ("zmq", None):
        with pytest.raises(
            ConfigError, match=rf"^{BROKER}: '.*' does not say where an event broker is; it should "
        ):
            check_meeting_places({BROKER: url}, "file", events)
    check_meeting_places({BROKER: url}, "file", "nats")


@pytest.mark.parametrize(
    "url",
    [
        "xsub=tcp://127.0.0.1:5 , xpub=tcp://127.0.0.1:6",
        "xpub=tcp://broker:6;tcp://other:6,xsub=tcp://broker:5;",
        "xsub=ipc:///tmp/in , xpub=ipc:///tmp/out",
        "",
    ],
)
def test_nobody_has_to_be_there_yet(url: str) -> None:
    check_meeting_places({BROKER: url}, "etcd", "zmq")


def test_files_can_be_in_the_store(tmp_path: Path) -> None:
    check_meeting_places({STORE: str(tmp_path / "new")}, "file", "nats")
    check_meeting_places({STORE: "/proc/x"}, "etcd", "nats")
    with pytest.raises(
        ConfigError, match=rf"^{STORE}: '/proc/x' is no directory that processes could meet in "
    ):
        check_meeting_places({STORE: "/proc/x"}, "file", "nats")


def test_workers_and_frontends_look_before_they_start(
    monkeypatch: pytest.MonkeyPatch, tiny_llama: object
) -> None:
    for name, value in ((BROKER, "garbage"), (STORE, "/proc/x")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            for parse in (
                lambda: AggArgs.parse([f"--model={tiny_llama}", "--discovery-backend=file"]),
                lambda: FrontendArgs.parse(["--discovery-backend=file"]),
            ):
                with pytest.raises(ConfigError, match=f"^{name}: "):
                    parse()
