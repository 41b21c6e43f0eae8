"""What a plan says before anything starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.demo_model import NAME
from wavepp_worker.model.files.user_cache import cache_root
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.serve import Graph, Service, flag_check
from wavepp_worker.serve.config_sources import read_file
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.launch_plan import LaunchPlan, Options, make_launch_plan
from wavepp_worker.serve.model_choice import DEMO_MODEL, DEMO_SHAPE

from tests.support.certificates import loopback_certificates

pytestmark = pytest.mark.usefixtures("in_the_repository")


@pytest.fixture
def etcd_port() -> Iterator[int]:
    """Takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        yield there.getsockname()[1]


def flags(plan: LaunchPlan, service: str) -> list[tuple[str, ...]]:
    return [process.argv for process in plan.processes if process.service == service]


def test_default_disaggregated_graph() -> None:
    plan = make_launch_plan(resolve("graphs:disagg_wavepp"), {}, Options())
    assert [process.label for process in plan.processes] == [
        "Frontend:0",
        "DecodeWorker:0",
        "PrefillWorker:0",
        "PrefillWorker:1",
    ]
    assert all("--pp=2" in argv for argv in flags(plan, "PrefillWorker"))
    assert plan.wants_demo
    assert plan.own_broker
    assert plan.own_store
    ports = [process.port for process in plan.processes]
    assert len(set(ports)) == 4
    assert max(ports) <= 32767
    assert "--http-host=127.0.0.1" in flags(plan, "Frontend")[0]
    filled = plan.with_model(Path("/models/demo"))
    assert not any(DEMO_MODEL in word for process in filled.processes for word in process.argv)
    assert "--model=/models/demo" in flags(filled, "DecodeWorker")[0]


@pytest.mark.parametrize("name", ["disagg_wavepp", "agg_wavepp", "disagg_wavepp_queue"])
def test_configuration_files_fit_their_graphs(name: str) -> None:
    plan = make_launch_plan(resolve(f"graphs:{name}"), read_file(Path(f"configs/{name}.yaml")), Options())
    assert plan.processes[0].service == "Frontend"
    assert plan.model == "SmolLM2-135M-Instruct"


def test_a_model_given_by_its_id_is_fetched_and_served_under_it(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def fetch_model(name: str, ignore_weights: bool = False) -> str:
        asked.append(name)
        return str(tiny_llama)

    monkeypatch.setattr("dynamo.llm.fetch_model", fetch_model)
    plan = make_launch_plan(resolve("graphs:agg_wavepp"), {"Common": {"model": "org/tiny"}}, Options())
    assert set(asked) == {"org/tiny"}
    assert plan.model == "org/tiny"
    [worker] = flags(plan, "Worker")
    assert {f"--model={tiny_llama}", "--served-model-name=org/tiny"} < set(worker)
    assert f"--model={tiny_llama}" in flags(plan, "Frontend")[0]


def test_discovery_by_etcd_needs_etcd_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    # A graph that starts a NATS server for its queue needs etcd no less.
    for name in ("disagg_wavepp", "disagg_wavepp_queue"):
        monkeypatch.setenv("ETCD_ENDPOINTS", "http://u:secret@127.0.0.1:9,127.0.0.1:10")
        etcd = resolve(f"graphs:{name}"), {"Common": {"discovery_backend": "etcd"}}, Options()
        with pytest.raises(
            ConfigError,
            match=r"discovery_backend=etcd .* by ETCD_ENDPOINTS \(http://127.0.0.1:9: .*; http://127.0.0.1:10: ",
        ):
            make_launch_plan(*etcd)
        with socket.create_server(("127.0.0.1", 0)) as there:
            monkeypatch.setenv("ETCD_ENDPOINTS", f"127.0.0.1:9, 127.0.0.1:{there.getsockname()[1]}")
            make_launch_plan(*etcd)
    monkeypatch.delenv("ETCD_ENDPOINTS")
    monkeypatch.setattr("wavepp_worker.etcd_variables.DEFAULT_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="ETCD_ENDPOINTS, which is not set"):
        make_launch_plan(*etcd)


def test_a_worker_is_checked_in_the_environment_that_it_would_have(
    monkeypatch: pytest.MonkeyPatch, etcd_port: int
) -> None:
    graph = resolve("graphs:disagg_wavepp")
    bad = {"DecodeWorker": {"ServiceArgs": {"envs": {"DYN_ENGINE_REQUEST_LIMIT": "many"}}}}
    with pytest.raises(ConfigError, match=r"^DecodeWorker: DYN_ENGINE_REQUEST_LIMIT: has a value "):
        make_launch_plan(graph, bad, Options())
    assert "DYN_ENGINE_REQUEST_LIMIT" not in os.environ
    bad = {"Frontend": {"ServiceArgs": {"envs": {"DYN_MIGRATION_LIMIT": "abc"}}}}
    with pytest.raises(ConfigError, match=r"^Frontend: DYN_MIGRATION_LIMIT: has a value "):
        make_launch_plan(graph, bad, Options())
    # The launcher has all listen on loopback, so hand-offs may; not where requests come from elsewhere.
    monkeypatch.setenv("ETCD_ENDPOINTS", f"http://127.0.0.1:{etcd_port}")
    etcd = {"Common": {"discovery_backend": "etcd", "host": "127.0.0.1"}}
    [note] = [each for each in make_launch_plan(graph, etcd, Options()).notes if "cannot reach them" in each]
    assert note.startswith(
        "workers of other hosts find these by discovery_backend=etcd, but cannot reach them, as "
    )
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "198.51.100.7")
    monkeypatch.setattr("wavepp_worker.serve.listen_addresses.check_host", lambda *_: None)
    with pytest.raises(
        ConfigError, match=r"^DecodeWorker\.host: 127\.0\.0\.1 reaches this machine alone, .*; give 198"
    ):
        make_launch_plan(graph, etcd, Options())


def test_model_given_once_is_everybodys(tiny_llama: Path) -> None:
    config = {"PrefillWorker": {"model": str(tiny_llama), "served_model_name": "tiny"}}
    plan = make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert not plan.wants_demo
    assert plan.model == "tiny"
    assert all(f"--model={tiny_llama}" in process.argv for process in plan.processes)
    assert "--served-model-name=tiny" in flags(plan, "DecodeWorker")[0]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"PrefillWorker": {"ppp": 3}}, "PrefillWorker.ppp: unknown"),
        ({"PrefillWorker": {"pp": "zero"}}, "PrefillWorker.pp: "),
        ({"PrefillWorker": {"chunk": 0}}, "PrefillWorker.chunk: "),
        ({"PrefillWorker": {"partition": "10,x"}}, "PrefillWorker.partition: "),
        ({"DecodeWorker": {"dtype": "int8"}}, "DecodeWorker.dtype: "),
        ({"Frontend": {"router_mode": "psychic"}}, "Frontend.router_mode"),
        ({"Common": {"model": "/nowhere"}}, ".model: /nowhere does not exist; give the path of"),
        (
            {"Common": {"model": "/tmp"}},
            ".model: /tmp is not a Hugging Face model directory (it has no config.json)",
        ),
        ({"Frontend": {"http_port": "x"}}, "Frontend.http_port: "),
        ({"Frontend": {"ServiceArgs": {"workers": 2}}}, "Frontend.ServiceArgs.workers: "),
    ],
)
def test_bad_configuration_fails_before_anything_starts(
    config: dict[str, dict[str, object]], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert key in str(caught.value)


def test_what_the_engines_would_refuse_is_refused_before_anything_starts(tiny_llama: Path) -> None:
    """Also of the demo model, which may not be there yet; in the engine's words, of each service its own."""

    def refused(name: str, **sections: dict[str, object]) -> str:
        with pytest.raises(ConfigError) as caught:
            make_launch_plan(resolve(f"graphs:{name}"), sections, Options())
        return str(caught.value)

    model = {"model": str(tiny_llama)}
    assert refused("disagg_wavepp", PrefillWorker={"pp": 31}).startswith(
        "PrefillWorker.pp: 31 stages cannot share 30 layers"
    )
    for service, key, value in [
        ("PrefillWorker", "pp", 7),
        ("PrefillWorker", "partition", "3,4"),
        ("PrefillWorker", "kv_tokens", 512),
        ("PrefillWorker", "disk_kv_tokens", 64),
        ("PrefillWorker", "max_model_len", 100_000),
        ("DecodeWorker", "max_model_len", 100_000),
        ("DecodeWorker", "kv_tokens", 512),
        ("DecodeWorker", "device", "gpu"),
    ]:
        said = refused("disagg_wavepp", Common=model, **{service: {key: value}})
        assert re.match(rf"{service}\.{key}\b", said), said
    for key in ("kv_tokens", "decode_kv_tokens"):
        assert refused("agg_wavepp", Common=model, Worker={key: 512}).startswith(f"Worker.{key} gives ")


def test_disk_tiers_of_all_replicas_have_to_fit(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = read_model_shape(tiny_llama)
    assert shape.kv_numbers
    assert shape.num_layers
    one = 64 * shape.kv_numbers * shape.num_layers * 4
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=one * 3 // 2, f_frsize=1))
    config: dict[str, dict[str, object]] = {
        "Common": {"model": str(tiny_llama), "dtype": "float32"},
        "PrefillWorker": {"disk_path": str(tmp_path / "kv"), "disk_kv_tokens": 64},
    }
    with pytest.raises(ConfigError, match=r"^PrefillWorker\.disk_path: .*/replica-1 is on .* over all ranks"):
        make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())
    config["PrefillWorker"]["ServiceArgs"] = {"workers": 1}
    make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())


def test_a_port_that_a_flag_names_and_cannot_have_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = {"PrefillWorker": {"bootstrap_port": port - 1}}
        with pytest.raises(
            ConfigError,
            match=rf"^PrefillWorker\.bootstrap_port: port ({port - 1}|{port}) of 127\.0\.0\.1 is in use",
        ):
            # Of two replicas the second has the next port.
            make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())


def test_the_demo_models_sizes_are_what_its_directory_says() -> None:
    directory = cache_root() / "models" / NAME
    if not directory.is_dir():
        pytest.skip("the demo model has not been made on this machine")
    assert read_model_shape(directory) == DEMO_SHAPE


def test_a_model_without_a_chat_template_is_served_for_completions(tiny_llama: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    config: dict[str, dict[str, object]] = {"Common": {"model": str(model)}}
    assert make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options()).chats
    said = json.loads((model / "tokenizer_config.json").read_text())
    del said["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(said))
    plan = make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert not plan.chats
    assert any("ask /v1/completions with a prompt" in note for note in plan.notes)
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    given = {"custom_jinja_template": str(template)}
    config |= {"DecodeWorker": given, "PrefillWorker": given}
    assert make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options()).chats
    template.unlink()
    with pytest.raises(
        ConfigError, match=rf"^DecodeWorker\.custom_jinja_template: {template} does not exist"
    ):
        make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())


def test_a_template_that_refuses_a_first_message_is_said_and_not_tried(
    tiny_llama: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    (model / "chat_template.jinja").write_text("{{ raise_exception('no such luck') }}")
    config = {"Common": {"model": str(model)}}
    plan = make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert not plan.chats
    assert "does not take one message of a user (no such luck)" in plan.notes[-1]
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m")
    with pytest.raises(
        ConfigError, match=r"^\w+\.model: the chat template in .*\.jinja has an error of syntax"
    ):
        make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())


def test_an_architecture_that_cannot_run_is_refused_before_anything_starts(
    tiny_llama: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    said = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**said, "model_type": "bert"}))
    with pytest.raises(ConfigError, match=r"^\w+Worker\.model: the architecture bert is not supported"):
        make_launch_plan(resolve("graphs:disagg_wavepp"), {"Common": {"model": str(model)}}, Options())


def test_files_of_a_model_that_contradict_each_other_are_refused_before_anything_starts(
    tiny_llama: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    config = {"Common": {"model": str(model)}}
    said = json.loads((model / "config.json").read_text())
    layers = said["num_hidden_layers"]
    (model / "config.json").write_text(json.dumps({**said, "num_hidden_layers": layers + 2}))
    with pytest.raises(
        ConfigError, match=rf"^\w+\.model: .* has weights of {layers} layers, where .* says {layers + 2} "
    ):
        make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())
    (model / "config.json").write_text(json.dumps(said))
    (model / "generation_config.json").write_text('{"do_sample": true, "temperature": "hot"}')
    with pytest.raises(
        ConfigError, match=r"^\w+Worker\.model: temperature in .*/generation_config\.json should"
    ):
        make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())


def test_a_key_of_another_service_is_told_whose_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^DecodeWorker\.pp: unknown; pp is a key of PrefillWorker$"):
        make_launch_plan(resolve("graphs:disagg_wavepp"), {"DecodeWorker": {"pp": 2}}, Options())


def test_gpus_go_to_one_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    config = {"PrefillWorker": {"ServiceArgs": {"resources": {"gpu": 2}}}}
    plan = make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())
    assert [process.env.get("CUDA_VISIBLE_DEVICES") for process in plan.processes] == [
        None,
        None,
        "3,5",
        "6,7",
    ]
    config["DecodeWorker"] = {"ServiceArgs": {"resources": {"gpu": 1}}}
    with pytest.raises(ConfigError, match=r"PrefillWorker\.ServiceArgs\.resources\.gpu"):
        make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options())


@pytest.mark.parametrize(
    ("environment", "own", "url"),
    [
        (None, None, "http://127.0.0.1:"),
        ("127.0.0.7", None, "http://127.0.0.7:"),
        ("127.0.0.7", "127.0.0.8", "http://127.0.0.8:"),
        ("0.0.0.0", None, "http://127.0.0.1:"),
    ],
)
def test_a_worker_is_asked_for_its_health_where_it_listens(
    monkeypatch: pytest.MonkeyPatch, tiny_llama: Path, environment: str | None, own: str | None, url: str
) -> None:
    if environment is None:
        monkeypatch.delenv("DYN_SYSTEM_HOST", raising=False)
    else:
        monkeypatch.setenv("DYN_SYSTEM_HOST", environment)
    envs = {"envs": {"DYN_SYSTEM_HOST": own}} if own else {}
    config = {"Common": {"model": str(tiny_llama)}, "Worker": {"ServiceArgs": envs}}
    plan = make_launch_plan(resolve("graphs:agg_wavepp"), config, Options())
    [worker] = [process for process in plan.processes if process.kind == "worker"]
    assert worker.url.startswith(url)


def test_default_port_gives_way_but_an_asked_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", (Service("Front", "json", kind="frontend"),))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr("wavepp_worker.serve.http_address.DEFAULT_PORT", taken)
        plan = make_launch_plan(graph, {}, Options())
        assert plan.processes[0].port > taken
        assert plan.notes == (f"port {taken} is in use, so HTTP is on {plan.processes[0].port}",)
        with pytest.raises(ConfigError, match="--port: "):
            make_launch_plan(graph, {}, Options(port=taken))
        with pytest.raises(ConfigError, match=r"Front\.http_port: "):
            make_launch_plan(graph, {"Front": {"http_port": taken}}, Options())


def test_http_is_where_dynamos_variables_say_unless_more_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", (Service("Front", "json", kind="frontend"),))

    def url(config: dict[str, Any], **options: Any) -> str | None:
        return make_launch_plan(graph, config, Options(**options)).base_url

    with socket.create_server(("127.0.0.9", 0)) as listener:
        free, taken = listener.getsockname()[1] + 1, listener.getsockname()[1]
        monkeypatch.setenv("DYN_HTTP_HOST", "127.0.0.9")
        monkeypatch.setenv("DYN_HTTP_PORT", str(free))
        assert url({}) == f"http://127.0.0.9:{free}"
        assert url({"Front": {"http_host": "127.0.0.8"}}) == f"http://127.0.0.8:{free}"
        assert url({"Front": {"http_port": free + 1}}, host="127.0.0.7") == f"http://127.0.0.7:{free + 1}"
        for value, message in (
            (str(taken), r"^DYN_HTTP_PORT: "),
            ("many", r"^DYN_HTTP_PORT: 'many' is not a"),
        ):
            monkeypatch.setenv("DYN_HTTP_PORT", value)
            with pytest.raises(ConfigError, match=message):
                url({})


@pytest.mark.parametrize("by", ["flags", "variables"])
def test_a_frontend_with_a_certificate_is_asked_by_https(
    by: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, certificate, key = loopback_certificates(tmp_path)
    frontend = {"tls_cert_path": str(certificate), "tls_key_path": str(key)} if by == "flags" else {}
    if by == "variables":
        monkeypatch.setenv("DYN_TLS_CERT_PATH", str(certificate))
        monkeypatch.setenv("DYN_TLS_KEY_PATH", str(key))
    config = {"Common": {"model": str(tiny_llama)}, "Frontend": frontend}
    base_url = make_launch_plan(resolve("graphs:agg_wavepp"), config, Options()).base_url
    assert base_url is not None
    assert base_url.startswith("https://127.0.0.1:")
    frontend |= {"tls_cert_path": str(key), "tls_key_path": str(key)}
    with pytest.raises(ConfigError, match=r"no certificate with its key"):
        make_launch_plan(resolve("graphs:agg_wavepp"), config, Options())


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_host_of_another_machine(host: str) -> None:
    with pytest.raises(ConfigError, match="--host: "):
        make_launch_plan(resolve("graphs:disagg_wavepp"), {}, Options(host=host))


def test_a_graph_that_no_frontend_could_find_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYN_FILE_KV", raising=False)
    graph = Graph("g", (Service("A", "json"),))
    [note] = make_launch_plan(graph, {}, Options()).notes
    assert note.startswith("nobody else can find these services: ")
    assert "set DYN_FILE_KV to a directory shared with a frontend elsewhere" in note
    monkeypatch.setenv("DYN_FILE_KV", "/tmp/shared")
    assert make_launch_plan(graph, {}, Options()).notes == ()


def test_one_service_needs_a_meeting_point(monkeypatch: pytest.MonkeyPatch, tiny_llama: Path) -> None:
    graph, config = resolve("graphs:disagg_wavepp"), {"Common": {"model": str(tiny_llama)}}
    alone = Options(only="PrefillWorker")
    with pytest.raises(ConfigError, match="DYN_FILE_KV"):
        make_launch_plan(graph, config, alone)
    monkeypatch.setenv("DYN_FILE_KV", "/tmp/shared")
    with pytest.raises(ConfigError, match="DYN_ZMQ_BROKER_URL"):
        make_launch_plan(graph, config, alone)
    monkeypatch.setenv("DYN_ZMQ_BROKER_URL", "xsub=tcp://127.0.0.1:1 , xpub=tcp://127.0.0.1:2")
    plan = make_launch_plan(graph, config, alone)
    assert {process.service for process in plan.processes} == {"PrefillWorker"}
    assert plan.base_url is None
    assert not plan.own_store
    assert not plan.own_broker
    with pytest.raises(ConfigError, match=r"--service-name: .*Nobody"):
        make_launch_plan(graph, config, Options(only="Nobody"))


def test_what_a_parser_warns_of_is_left_to_the_process_to_say(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The launcher's own lines may be JSON."""

    class Args:
        @staticmethod
        def parse(argv: list[str]) -> None:
            warnings.warn("--a is deprecated", FutureWarning, stacklevel=1)

    monkeypatch.setattr(flag_check, "parser_of", lambda service: Args)
    flag_check.check_flags(Service("A", "a"), [], None, [])
    assert not recwarn.list
