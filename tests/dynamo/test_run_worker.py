"""A worker's process from its start to its exit code, with only the middle of Dynamo's part left out."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from wavepp_worker.dynamo import etcd_use, presence
from wavepp_worker.dynamo import run_worker as run_module
from wavepp_worker.dynamo import worker as worker_module
from wavepp_worker.dynamo.prefill import PrefillWorker
from wavepp_worker.errors import ConfigError, EngineDead, WaveppError

from tests.support.dynamo_workers import KINDS, FakeEndpoint, run

pytestmark = pytest.mark.usefixtures("fake_engines")


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What workers of this test would have ended this process with; no signal to stop ends it either."""
    codes: list[int] = []
    for module in (worker_module, run_module):
        monkeypatch.setattr(module, "leave_process", codes.append)
    monkeypatch.setattr(run_module.faulthandler, "enable", lambda: None)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    yield codes
    for number, handler in before.items():
        signal.signal(number, handler)


def run_worker_as(
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    life: Callable[[PrefillWorker], Awaitable[None]],
    discovery: str = "file",
) -> None:
    """``run_worker`` with ``life`` for what Dynamo does with the worker."""

    class DynamoWorker:
        def __init__(self, worker: PrefillWorker, _: object) -> None:
            self._worker = worker

        async def run(self) -> None:
            await asyncio.wait_for(life(self._worker), 20)

    monkeypatch.setattr(run_module, "Worker", DynamoWorker)
    run_module.run_worker(
        lambda: PrefillWorker.from_args(["--model", str(model), "--discovery-backend", discovery])
    )


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_worker_that_was_told_to_stop_ends_at_once_with_0(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    """A canary that Dynamo's threads asked for while the interpreter ended aborted the process."""

    async def life(worker: PrefillWorker) -> None:
        await worker.start(1)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: worker._stop_order.given)
        await worker.cleanup()

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes == [0]


def test_a_worker_whose_runtime_ends_unasked_says_so(
    text_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_codes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As when etcd was away for longer than the worker's lease."""

    async def life(worker: PrefillWorker) -> None:
        await worker.start(1)
        await worker.cleanup()

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes == [worker_module.EXIT_ENGINE_DIED]
    assert "FATAL: Dynamo ended its runtime" in capsys.readouterr().err


def test_a_worker_that_was_told_to_stop_ends_before_its_event_loop(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    """What Dynamo still asked of a stream while the loop was closed was said to be destroyed, as an ERROR."""
    asked: list[asyncio.Task[bool]] = []
    ended: list[bool] = []
    monkeypatch.setattr(run_module, "leave_process", lambda code: ended.append(asked[0].done()))

    async def life(worker: PrefillWorker) -> None:
        asked.append(asyncio.create_task(asyncio.Event().wait()))

    run_worker_as(monkeypatch, text_model, life)
    assert ended == [False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_worker_that_was_told_to_stop_does_not_mind_that_discovery_forgets_it(
    number: signal.Signals,
    text_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_codes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(presence, "TICK_SECONDS", 0.001)

    async def life(worker: PrefillWorker) -> None:
        await worker.start(1)
        endpoint = FakeEndpoint()
        await worker.on_endpoint_ready(endpoint)
        await until(lambda: endpoint.looks)
        os.kill(os.getpid(), number)
        await until(lambda: worker._presence and worker._presence.cancelled())
        endpoint.entered = False
        await worker.on_endpoint_ready(endpoint)
        await asyncio.sleep(0.1)
        await worker.cleanup()

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes == [0]
    assert "FATAL" not in capsys.readouterr().err


def test_a_worker_that_was_not_told_to_stop_leaves_when_discovery_forgets_it(
    text_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_codes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(presence, "TICK_SECONDS", 0.001)

    async def life(worker: PrefillWorker) -> None:
        await worker.start(1)
        endpoint = FakeEndpoint()
        await worker.on_endpoint_ready(endpoint)
        await until(lambda: endpoint.looks)
        endpoint.entered = False
        await until(lambda: exit_codes)

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes[0] == worker_module.EXIT_ENGINE_DIED
    assert "FATAL: discovery has forgotten this worker" in capsys.readouterr().err


def test_a_worker_that_is_told_to_stop_before_dynamo_listens_leaves(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    async def life(worker: PrefillWorker) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: exit_codes)

    run_worker_as(monkeypatch, text_model, life)
    assert exit_codes[0] == 0


@pytest.mark.parametrize("close_hangs", [False, True])
def test_a_worker_that_is_told_to_stop_while_its_engine_starts_does_not_wait_for_that(
    close_hangs: bool, text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    closed, let_go = threading.Event(), threading.Event()

    def opening(_: PrefillWorker) -> NoReturn:
        closed.wait(20)
        raise EngineDead("the engine was closed while it started; make a new one")

    def closing(_: PrefillWorker) -> None:
        if close_hangs:
            let_go.wait(20)
        closed.set()

    monkeypatch.setattr(worker_module, "CLEANUP_SECONDS", 0.5)
    monkeypatch.setattr(PrefillWorker, "open", opening)
    monkeypatch.setattr(PrefillWorker, "close", closing)

    async def life(worker: PrefillWorker) -> None:
        starting = asyncio.create_task(worker.start(1))
        await until(lambda: worker._loop)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: exit_codes)
        let_go.set()
        await asyncio.gather(starting, return_exceptions=True)

    run_worker_as(monkeypatch, text_model, life)
    assert set(exit_codes) == {0}


def test_a_worker_without_etcd_waits_hears_an_order_to_stop_and_gives_up_with_a_sentence(
    text_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_codes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(etcd_use, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(etcd_use, "AGAIN_SECONDS", 0.01)
    asked = itertools.count()
    begun: list[PrefillWorker] = []

    def why_unreached(discovery: str, _: object) -> str:
        if next(asked) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return f"{discovery} needs etcd"

    monkeypatch.setattr(etcd_use, "why_unreached", why_unreached)

    async def life(worker: PrefillWorker) -> None:
        begun.append(worker)

    with pytest.raises(SystemExit) as left:
        run_worker_as(monkeypatch, text_model, life, "etcd")
    # This one went on, as leaving did not end the process.
    assert (exit_codes, left.value.code, begun) == ([0], 1, [])
    assert "error: --discovery-backend=etcd needs etcd" in capsys.readouterr().err


@pytest.mark.parametrize("discovery", ["etcd", "file"])
def test_a_worker_ends_its_lease_before_it_ends(
    discovery: str, text_model: Path, monkeypatch: pytest.MonkeyPatch, exit_codes: list[int]
) -> None:
    """Dynamo's task that does so ends with the process, done or not."""
    done: list[object] = []
    monkeypatch.setattr(etcd_use, "why_unreached", lambda *_: None)
    monkeypatch.setattr(worker_module, "end_lease", lambda _, instance: done.append(instance))
    monkeypatch.setattr(run_module, "leave_process", done.append)

    async def life(worker: PrefillWorker) -> None:
        await worker.start(1)
        await worker.on_endpoint_ready(FakeEndpoint())
        worker.told_to_stop()
        await worker.cleanup()

    run_worker_as(monkeypatch, text_model, life, discovery)
    assert done == (["7", 0] if discovery == "etcd" else [0])


@pytest.mark.parametrize(("error", "code"), [(ConfigError("--pp: 9 ranks"), 2), (EngineDead("no rank"), 1)])
def test_a_worker_that_cannot_start_says_why_and_whether_its_configuration_is_to_blame(
    error: WaveppError, code: int, exit_codes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    async def make() -> NoReturn:
        raise error

    with pytest.raises(SystemExit) as left:
        run_module.run_worker(make)
    assert left.value.code == code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_the_limit_of_requests_is_where_dynamos_runtime_looks_for_it(
    kind: str, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DYN_ENGINE_REQUEST_LIMIT", raising=False)
    arguments = ["--model", str(text_model), "--served-model-name", "tiny"]
    run(KINDS[kind].from_args(arguments))
    assert "DYN_ENGINE_REQUEST_LIMIT" not in os.environ
    run(KINDS[kind].from_args([*arguments, "--engine-request-limit", "3"]))
    assert os.environ["DYN_ENGINE_REQUEST_LIMIT"] == "3"


def test_a_worker_that_is_interrupted_while_its_modules_are_loaded_leaves_without_a_traceback() -> None:
    script = (
        "import sys\n"
        "import wavepp_worker.__main__ as worker\n"
        "def load(name):\n"
        "    raise KeyboardInterrupt\n"
        "worker.importlib.import_module = load\n"
        "sys.argv = ['worker', '--disaggregation-mode', 'decode']\n"
        "worker.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
