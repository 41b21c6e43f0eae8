"""What README and docs tell a reader to type, open or look for is there; what needs no graph is run."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import socket
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from dynamo import _core, prometheus_names
from typer.main import get_command
from typer.testing import CliRunner
from wavepp_worker import cli as wavepp
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.dynamo.flags import Parser
from wavepp_worker.dynamo.frontend import FrontendArgs
from wavepp_worker.dynamo.metrics import METRIC_PREFIX
from wavepp_worker.log_form import FORMAT_VARIABLE
from wavepp_worker.model.device import placement
from wavepp_worker.serve import cli as serve
from wavepp_worker.serve.control import CONTROLS
from wavepp_worker.serve.former_launcher import OPTIONS
from wavepp_worker.setting_names import VARIABLES, variable_of

from tests.support.exported_metrics import dynamos_names, exported
from tests.support.lora_adapters import make_adapter
from tests.support.page_commands import ROOT, Command, blocks, commands, pages

PAGES = pages()
COMMANDS = [command for page in PAGES for command in commands(page)]
TOOLS = frozenset(
    {
        "aiperf",
        "cd",
        "curl",
        "docker",
        "echo",
        "etcdctl",
        "export",
        "git",
        "grep",
        "jq",
        "kill",
        "pip",
        "source",
        "systemctl",
        ".",
    }
)
"""Programs of others, and what a shell knows itself."""
OTHERS_FLAGS = frozenset(
    {
        "--data-dir",
        "--gpus",
        "--network",
        "--no-deps",
        "--num-prefix-prompts",
        "--prefix-prompt-length",
        "--privileged",
        "--shm-size",
        "--since",
        "--synthetic-input-tokens-mean",
        "--unit",
    }
)
"""Flags of others' programs that pages name."""
FORMER_FLAGS = frozenset(f"--{option}" for option in OPTIONS)
FORMER_VARIABLES = frozenset({"DYN_DEPLOYMENT_CONFIG"})
"""What Dynamo's former launcher took, and ours tells how to write."""
PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/live", "/metrics"}
    | {f"/engine/control/{name}" for name in CONTROLS}
)
JOINED_NAMES = frozenset(
    {"DYN_CANARY_WAIT_TIME", "DYN_HEALTH_CHECK_ENABLED", "DYN_HEALTH_CHECK_REQUEST_TIMEOUT"}
)
"""Variables that Dynamo's library joins from a prefix and a field, so that it holds none as a whole."""
LATER_NAMES = frozenset({FORMAT_VARIABLE})
"""Variables of versions of Dynamo that are newer than the one that may be installed."""
SETTING_VARIABLES = {
    variable_of(name) for kind in (PrefillArgs, DecodeArgs, AggArgs) for name in kind.settings()
}
SUFFIXES = re.compile(r"_(total|bucket|sum|count|created)$")


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def of_program(name: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[0] == name]


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """The graph that docs/graphs.md shows."""
    file = tmp_path / "mygraph.py"
    file.write_text(blocks("docs/graphs.md", "python")[0])
    return file


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Takes connections, as etcd and NATS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_pages_have_commands_and_only_known_programs() -> None:
    programs = {command.words[0] for command in COMMANDS}
    assert {"dynamo", "wavepp", "python", "make", "curl"} <= programs
    assert programs - {"dynamo", "wavepp", "python", "python3", "make"} <= TOOLS


@pytest.mark.parametrize("command", of_program("dynamo"), ids=str)
def test_dynamo_serve_takes_what_pages_give_it(
    command: Command,
    tiny_llama: Path,
    graph_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listener: socket.socket,
) -> None:
    """``--dry-run`` checks everything that can be checked before a process starts; GPUs are as many as the page has.

    Etcd and NATS take connections.
    """
    monkeypatch.chdir(ROOT)
    adapter = make_adapter(tmp_path / "adapter", tiny_llama)
    gpus = next((each.count(",") + 1 for each in command.variables if "CUDA_VISIBLE" in each), 0)
    monkeypatch.setattr(placement, "gpu_count", lambda: gpus)
    for variable in (
        *command.variables,
        f"ETCD_ENDPOINTS=http://127.0.0.1:{listener.getsockname()[1]}",
        f"NATS_SERVER=nats://127.0.0.1:{listener.getsockname()[1]}",
        "DYN_FILE_KV=/tmp/store",
        "DYN_ZMQ_BROKER_URL=xsub=tcp://127.0.0.1:1 , xpub=tcp://127.0.0.1:2",
    ):
        monkeypatch.setenv(*variable.split("=", 1))
    words = [
        re.sub(r"^(path/to/)?mygraph(\.py)?(?=:|$)", str(graph_file), word) for word in command.words[1:]
    ]
    words = [re.sub(r"\bDIR\b|/models/\w+", str(tiny_llama), word) for word in words]
    words = [re.sub(r"/adapters/\w+", str(adapter), word) for word in words]
    words = [re.sub(r"\b10\.0\.0\.\d\b", "127.0.0.1", word) for word in words]
    if "--port" in words:
        # Somebody may listen on the page's.
        words[words.index("--port") + 1] = str(unused_port())
    graph = len(words) > 1 and not words[1].startswith("-")
    done = CliRunner().invoke(
        serve.app, [*words, *(["--dry-run"] if graph and "--dry-run" not in words else [])]
    )
    assert done.exit_code == 0, f"{command}\n{done.output}"


@pytest.mark.parametrize("command", of_program("wavepp"), ids=str)
def test_wavepp_takes_what_pages_give_it(command: Command) -> None:
    group = get_command(wavepp.app)
    name, *arguments = command.words[1:]
    if name.startswith("-"):
        assert CliRunner().invoke(wavepp.app, [name, *arguments]).exit_code == 0
        return
    assert name in group.commands, command
    group.commands[name].make_context(name, [*map(str, arguments)])


def test_the_readmes_prompts_give_the_results_that_it_says(tiny_llama: Path, tmp_path: Path) -> None:
    [command, *_] = [each for each in of_program("wavepp") if each.page == "README.md"]
    prompts, results = tmp_path / "prompts.jsonl", tmp_path / "results.jsonl"
    prompts.write_text('{"id": "a", "token_ids": [1, 2, 3]}\n{"id": "b", "text": "hello"}\n{"id": "c"}\n')
    files = {"DIR": str(tiny_llama), "prompts.jsonl": str(prompts), "results.jsonl": str(results)}
    words = [files.get(word, word) for word in command.words[1:]]
    words[words.index("--pp") + 1] = "1"
    done = CliRunner().invoke(wavepp.app, words)
    assert done.exit_code == 1, "a prompt failed"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    told = " ".join((ROOT / "README.md").read_text().split())
    for key in {key for line in lines for key in line}:
        assert f"`{key}`" in told, f"{key} is in a result, and not in the README"
    assert [set(line) for line in lines][2] == {"id", "error"}


@pytest.mark.parametrize("command", [*of_program("python"), *of_program("python3")], ids=str)
def test_modules_and_their_flags_are_there(command: Command) -> None:
    if command.words[1:2] != ("-m",):
        return
    module = command.words[2]
    assert importlib.util.find_spec(module) is not None, command
    if module.startswith(("bench", "tests", "wavepp_worker")):
        flags = {word.partition("=")[0] for word in command.words[3:] if word.startswith("--")}
        assert flags <= our_flags(), command


def test_makes_targets_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for command in of_program("make"):
        assert command.words[1] in targets, command
        for word in command.words[2:]:
            name, _, value = word.partition("=")
            assert name in {"ARGS", "DYNAMO", "GRAPH"}, command
            flags = {flag.partition("=")[0] for flag in value.split() if flag.startswith("--")}
            assert all(flag in our_flags() or "." in flag for flag in flags), command


def test_what_pages_fetch_is_served() -> None:
    for command in of_program("curl"):
        [url] = [word for word in command.words if word.startswith(("http:", "$"))]
        path = "/" + re.sub(r"^(http://[^/]+|\$\w+)/?", "", url)
        assert path in PATHS, command


def test_extras_are_there() -> None:
    project = (
        (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    )
    extras = set(re.findall(r"^(\w+) = ", project, flags=re.MULTILINE))
    for page in PAGES:
        for named in re.findall(r"'\.\[([\w,]+)\]'", (ROOT / page).read_text()):
            assert set(named.split(",")) <= extras, page


@cache
def our_flags() -> set[str]:
    """Every flag of our commands and workers, and of Dynamo's workers and frontend."""
    found = {"--help", "--version"}
    for app in (serve.app, wavepp.app):
        command = get_command(app)
        for each in (command, *getattr(command, "commands", {}).values()):
            found.update(option for parameter in each.params for option in parameter.opts)
    parsers: list[Parser] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse_args", lambda parser, *_: parsers.append(parser) or sys.exit())
        for arguments in (PrefillArgs, DecodeArgs, AggArgs, FrontendArgs):
            with pytest.raises(SystemExit):
                arguments.parse([])
    found.update(
        option for parser in parsers for action in parser._actions for option in action.option_strings
    )
    for file in [*(ROOT / "bench").rglob("*.py"), *(ROOT / "tests").glob("*/__main__.py"), *_simulator()]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = (*node.args.args, *node.args.kwonlyargs)
                found.update("--" + argument.arg.replace("_", "-") for argument in arguments)
            elif isinstance(node, ast.Constant) and re.fullmatch(r"--[a-z-]+", str(node.value)):
                found.add(str(node.value))
    return found


def _simulator() -> Iterator[Path]:
    return (ROOT / "tests" / "simulator").glob("*.py")


@pytest.mark.parametrize("page", PAGES)
def test_flags_in_the_text_of_a_page_are_somebodys(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`([^`\n]+)`", text):
        for flag in re.findall(r"(?<![\w-])(--[A-Za-z][\w.-]*)", span):
            service = re.match(r"--[A-Z]\w*\.(.+)", flag)
            if service is None:
                assert flag in our_flags() | OTHERS_FLAGS | FORMER_FLAGS, f"{page}: {span}"
            elif not service[1].startswith("ServiceArgs."):
                assert "--" + service[1].replace("_", "-") in our_flags(), f"{page}: {span}"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_of_a_page_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert link.startswith("https://") or ((ROOT / page).parent / link).exists(), link
    for path in re.findall(r"`((?:bench|components|configs|deploy|docs|graphs|tests)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_all_our_metrics_are_described_and_no_others() -> None:
    samples = exported()
    assert len(samples) > 25
    for page in PAGES:
        named = set(re.findall(rf"\b{METRIC_PREFIX}(?!worker\b)[a-z_]+[a-z]\b", (ROOT / page).read_text()))
        assert named <= set().union(samples, *samples.values()), page
    operate = (ROOT / "docs" / "operate.md").read_text()
    for name, of_it in samples.items():
        assert any(re.search(rf"\b{sample}\b", operate) for sample in of_it), (
            f"{name} is not in docs/operate.md"
        )


def test_metrics_of_dynamo_that_pages_name_are_its_own() -> None:
    known = dynamos_names()
    for page in PAGES:
        for name in re.findall(
            r"\bdynamo_(?:frontend|component|r[a-z]+)_[a-z_]+[a-z]\b", (ROOT / page).read_text()
        ):
            assert {name, SUFFIXES.sub("", name)} & known or name.endswith("_router"), f"{page}: {name}"


def test_variables_of_dynamo_that_pages_name_are_read_by_it() -> None:
    library = Path(_core.__file__).read_bytes()
    dynamo = Path(prometheus_names.__file__).parent
    files = [file for package in ("common", "frontend") for file in (dynamo / package).rglob("*.py")]
    sources = "".join(file.read_text() for file in files).encode()
    for page in PAGES:
        for name in set(re.findall(r"\bDYN_[A-Z_]+[A-Z]\b", (ROOT / page).read_text())):
            if name.startswith(VARIABLES):
                assert name in SETTING_VARIABLES, f"{page}: {name}"
                continue
            known = (
                name in JOINED_NAMES | LATER_NAMES | FORMER_VARIABLES
                or name.encode() in library
                or name.encode() in sources
            )
            assert known, f"{page}: {name}"
