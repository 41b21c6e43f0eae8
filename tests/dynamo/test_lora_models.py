"""Adapters in discovery, and requests that choose one, by workers of every role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.llm import ModelType, WorkerType
from dynamo.llm.exceptions import Unknown
from wavepp_worker.dynamo import adapter_order, lora_models
from wavepp_worker.dynamo import worker as worker_module
from wavepp_worker.dynamo.model_cards import BASE, CardsByWorker, WorkerCards

from tests.support.dynamo_workers import KINDS, FakeEndpoint, collect, prompt, run
from tests.support.lora_adapters import make_adapter

Models = dict[int, set[str]]

pytestmark = pytest.mark.usefixtures("fake_engines")


@pytest.fixture
def adapter(text_model: Path, tmp_path: Path) -> Path:
    """One that changes nothing."""
    return make_adapter(tmp_path / "adapter", text_model)


async def with_adapters(
    kind: str, model: Path, adapter: Path, *names: str, flags: tuple[str, ...] = ()
) -> Any:
    words = ["--model", str(model), "--served-model-name", "tiny", "--discovery-backend", "file", *flags]
    modules = ",".join(f"{name}={adapter}" for name in names)
    worker, _ = await KINDS[kind].from_args([*words, "--lora-modules", modules])
    return worker


@asynccontextmanager
async def poet_starting(
    kind: str, model: Path, adapter: Path, *names: str, entered: bool = True
) -> AsyncIterator[tuple[Any, FakeEndpoint]]:
    """A worker with the adapter ``poet`` whose engine has started, and the endpoint it is to have.

    Args:
        names: of further adapters.
        entered: whether it is in discovery.
    """
    worker, endpoint = await with_adapters(kind, model, adapter, "poet", *names), FakeEndpoint()
    endpoint.entered = entered
    await worker.start(1)
    yield worker, endpoint
    await worker.cleanup()


def names(told: list[tuple[str, Any, dict[str, Any]]], what: str = "registered") -> list[str | None]:
    return [fields["lora_name"] for said, _, fields in told if said == what]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Models:
    """The models that other workers of the endpoint have in discovery, where these renew them with each look."""
    others: Models = {}
    looks = count()

    def read() -> CardsByWorker:
        expires = 10.0 * next(looks)
        models = {**others, 7: {BASE}}
        return {worker: WorkerCards(frozenset(names), expires) for worker, names in models.items()}

    monkeypatch.setattr(worker_module, "card_reader", lambda *_: read)
    monkeypatch.setattr(lora_models, "CARDS_SECONDS", 0.05)
    return others


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, cards: Models) -> list[tuple[str, Any, dict[str, Any]]]:
    """What discovery is told: registered or withdrawn, the endpoint or name, and the rest."""
    calls: list[tuple[str, Any, dict[str, Any]]] = []

    async def register(**fields: Any) -> None:
        calls.append(("registered", fields.pop("endpoint"), fields))

    async def unregister(endpoint: Any, name: str | None) -> None:
        calls.append(("withdrawn", endpoint, {"lora_name": name}))
        raise RuntimeError("it is not there any more")

    monkeypatch.setattr(lora_models, "register_model", register)
    monkeypatch.setattr(lora_models, "unregister_model", unregister)
    monkeypatch.setattr(lora_models, "BASE_MODEL_SECONDS", 0.1)
    monkeypatch.setattr(lora_models, "LOST_ADAPTER_ENDS_PREFILL", True)
    return calls


def test_each_adapter_is_a_model_while_the_worker_is_there(
    kind: str, text_model: Path, adapter: Path, told: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    async def check() -> None:
        worker, endpoint = await with_adapters(kind, text_model, adapter, "poet", "coder"), FakeEndpoint()
        registration = await worker.start(1)
        # A frontend that hears of an adapter before its base model does without it for half a minute.
        endpoint.entered = False
        await worker.on_endpoint_ready(endpoint)
        while endpoint.looks < 4:
            await asyncio.sleep(0.01)
        assert told == []
        endpoint.entered = True
        await worker._adapters._entering
        assert [(what, at, fields["lora_name"]) for what, at, fields in told] == [
            ("registered", endpoint, "poet"),
            ("registered", endpoint, "coder"),
        ]
        said = told[0][2]
        assert said["model_path"] == said["base_model_path"] == str(text_model)
        assert said["kv_cache_block_size"] == registration.llm.kv_cache_block_size
        assert said["runtime_config"].context_length == registration.llm.context_length
        assert said["custom_template_path"] is None
        role, needs = {
            "prefill": (WorkerType.Prefill, [[WorkerType.Decode]]),
            "decode": (WorkerType.Decode, [[WorkerType.Prefill]]),
            "agg": (WorkerType.Aggregated, []),
        }[kind]
        assert (said["worker_type"], said["needs"]) == (role, needs)
        assert (said["model_type"] == ModelType.Prefill) == (kind == "prefill")
        assert (said["runtime_config"].bootstrap_port is not None) == (kind == "prefill")
        del told[:]
        await worker.cleanup()
        # The base model first: frontends that lose the last prefill worker with an adapter end all prefill of that.
        assert names(told, "withdrawn") == [*([None] if kind == "prefill" else []), "poet", "coder"]

    run(check())


def test_adapters_that_others_have_come_before_the_worker_itself(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
) -> None:
    """Else the others may leave with them while this one has its base model alone."""
    cards[5] = {BASE, "poet", "new_one"}

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, "New.One", entered=False) as (worker, endpoint):
            assert endpoint.instance_ids() == []
            await worker.on_endpoint_ready(endpoint)
            assert names(told) == ["poet", "New.One"]
            endpoint.entered = True
            await worker._adapters._entering
            assert names(told) == ["poet", "New.One"]

    run(check())


@pytest.mark.parametrize("enters", [True, False])
def test_who_has_its_base_model_alone_is_waited_for(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    enters: bool,
) -> None:
    """It is about to enter its adapters, or has left and will take that out, too."""
    cards[5] = {BASE}

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, entered=False) as (worker, endpoint):
            coming = asyncio.create_task(worker.on_endpoint_ready(endpoint))
            await asyncio.sleep(0.2)
            assert (told, coming.done(), worker._adapters.hold_worker_back) == ([], False, True)
            if enters:
                cards[5].add("poet")
            else:
                del cards[5]
            await coming
            assert names(told) == (["poet"] if enters else [])
            endpoint.entered = True
            await worker._adapters._entering
            assert names(told) == ["poet"]

    run(check())


def test_workers_without_adapters_are_not_waited_for_for_ever(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapter_order, "LONGEST_WAIT_SECONDS", 0.3)
    cards[5] = {BASE}

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter) as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)
            assert told == []
            await worker._adapters._entering
            assert names(told) == ["poet"]

    run(check())


def test_what_others_have_comes_first_however_long_one_of_them_has_nothing(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapter_order, "LONGEST_WAIT_SECONDS", 0.3)
    cards.update({5: {BASE}, 6: {BASE, "poet"}})

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, "coder") as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)
            assert names(told) == ["poet"]
            await worker._adapters._entering
            assert names(told) == ["poet", "coder"]

    run(check())


def test_discovery_that_does_not_answer_is_asked_again(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has = frozenset({BASE, "poet"})
    answers = [None, {5: WorkerCards(has, 1.0)}, {5: WorkerCards(has, 5.0)}, None]
    monkeypatch.setattr(worker_module, "card_reader", lambda *_: lambda: answers.pop(0) if answers else None)

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, entered=False) as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)
            assert [what for what, _, _ in told] == ["registered"]

    run(check())


@pytest.fixture
def change_meanwhile(
    cards: Models, told: list[tuple[str, Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Models], None]:
    """Call it with what others are to have once an adapter is registered."""

    def change(to: Models) -> None:
        register = lora_models.register_model

        async def last(**fields: Any) -> None:
            cards.clear()
            cards.update(to)
            await register(**fields)

        monkeypatch.setattr(lora_models, "register_model", last)

    return change


def test_adapters_whose_others_leave_as_they_come_are_taken_back(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    change_meanwhile: Callable[[Models], None],
) -> None:
    cards[5] = {BASE, "poet"}

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, entered=False) as (worker, endpoint):
            change_meanwhile({})
            await worker.on_endpoint_ready(endpoint)
            assert [what for what, _, _ in told] == ["registered", "withdrawn"]
            endpoint.entered = True
            await worker._adapters._entering
            assert [what for what, _, _ in told] == ["registered", "withdrawn", "registered"]

    run(check())


def test_adapters_are_not_taken_back_while_another_has_the_base_model(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    change_meanwhile: Callable[[Models], None],
) -> None:
    """Who has lost its own meanwhile: these may be the last."""
    cards[5] = {BASE, "poet"}

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, entered=False) as (worker, endpoint):
            change_meanwhile({5: {BASE}})
            await worker.on_endpoint_ready(endpoint)
            assert [what for what, _, _ in told] == ["registered"]

    run(check())


def test_an_order_to_stop_ends_a_worker_that_waits_for_adapters(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it comes into discovery itself."""
    cards[5] = {BASE}
    codes: list[int] = []
    monkeypatch.setattr(worker_module, "leave_process", codes.append)

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, entered=False) as (worker, endpoint):
            coming = asyncio.create_task(worker.on_endpoint_ready(endpoint))
            await asyncio.sleep(0.1)
            worker.told_to_stop()
            await coming
            assert codes == [0]
            assert names(told) == []

    run(check())


def test_with_dynamo_1_6_a_worker_comes_before_its_adapters(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lora_models, "LOST_ADAPTER_ENDS_PREFILL", False)
    cards[5] = {BASE, "poet"}

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter) as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)
            assert told == []
            await worker._adapters._entering
            assert names(told) == ["poet"]
        assert names(told, "withdrawn") == ["poet"]

    run(check())


def test_an_order_to_stop_leaves_out_adapters_that_are_still_to_come(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
) -> None:
    """They would be in discovery while the worker is not."""

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter) as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)
            worker.told_to_stop()
            await asyncio.sleep(0.3)
            assert names(told) == []

    run(check())


def test_discovery_that_does_not_forget_holds_up_nobody(
    kind: str,
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(lora_models, "unregister_model", never)
    monkeypatch.setattr(lora_models, "UNREGISTER_SECONDS", 0.05)

    async def check() -> None:
        async with poet_starting(kind, text_model, adapter, "coder") as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)

    run(check())
    (said,) = [record.getMessage() for record in caplog.records if "did not forget" in record.getMessage()]
    assert said.endswith("within 0.05 s")


@pytest.mark.parametrize("stops", [False, True])
def test_jobs_are_taken_once_what_others_have_is_entered(
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    monkeypatch: pytest.MonkeyPatch,
    stops: bool,
) -> None:
    """A prefill worker that is told to stop before ends at once, and must have none."""
    cards[5] = {BASE}
    monkeypatch.setattr(worker_module, "leave_process", lambda _: None)
    asked: list[str] = []

    class Intake:
        def __getattr__(self, what: str) -> Any:
            return lambda *_, **__: asked.append(what) or True

    async def check() -> None:
        async with poet_starting("prefill", text_model, adapter, entered=False) as (worker, endpoint):
            worker._intake = Intake()
            coming = asyncio.create_task(worker.on_endpoint_ready(endpoint))
            await asyncio.sleep(0.1)
            assert asked == []
            if stops:
                worker.told_to_stop()
            else:
                cards[5].add("poet")
            await coming
            assert asked == (["stop_taking", "close"] if stops else ["start"])

    run(check())


def test_a_worker_is_not_well_before_its_adapters_are_in_discovery(
    kind: str, text_model: Path, adapter: Path, told: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    async def check() -> None:
        async with poet_starting(kind, text_model, adapter) as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)
            probe: Any = await worker.health_check_payload()
            with pytest.raises(Unknown, match=r"WorkerStarting: .*adapters are not in discovery yet"):
                await collect(worker, probe, Context("probe"))
            worker.check_open(prompt(kind, 1, model="tiny"))
            await worker._adapters._entering
            assert await collect(worker, probe, Context("probe"))

    run(check())


def test_what_frontends_are_told_of_the_base_model_they_are_told_of_adapters(
    kind: str, text_model: Path, adapter: Path, told: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    flags = (
        "--dyn-tool-call-parser=hermes",
        "--dyn-reasoning-parser=qwen3",
        "--dyn-default-thinking-mode=disabled",
        "--no-exclude-tools-when-tool-choice-none",
        "--kv-state-endpoint=dynamo.elsewhere.generate",
    )

    async def check(*flags: str) -> Any:
        worker, endpoint = await with_adapters(kind, text_model, adapter, "poet", flags=flags), FakeEndpoint()
        await worker.start(1)
        await worker.on_endpoint_ready(endpoint)
        await worker._adapters._entering
        await worker.cleanup()
        return next(fields for what, _, fields in told if what == "registered")["runtime_config"]

    config = run(check(*flags))
    assert (config.tool_call_parser, config.reasoning_parser) == ("hermes", "qwen3")
    assert config.get_engine_specific(lora_models.THINKING) == "disabled"
    assert config.exclude_tools_when_tool_choice_none is False
    assert "elsewhere" in str(config.kv_state_endpoint)
    del told[:]
    plain = run(check())
    assert plain.exclude_tools_when_tool_choice_none is True
    assert (plain.kv_state_endpoint, plain.get_engine_specific(lora_models.THINKING)) == (None, None)


def test_requests_take_the_adapter_whose_model_they_name(kind: str, text_model: Path, adapter: Path) -> None:
    async def check() -> None:
        worker = await with_adapters(kind, text_model, adapter, "poet")
        await worker.start(1)
        for room, name in enumerate(("poet", "tiny"), start=1):
            await collect(worker, prompt(kind, room, model=name), Context(name))
        engines = [
            getattr(worker, part).engine
            for part in ("_handler", "_prefill", "_decode")
            if hasattr(worker, part)
        ]
        for engine in engines:
            assert [request.lora for request in engine.requests] == ["poet", ""]
        await worker.cleanup()

    run(check())


def test_an_adapter_is_not_called_as_the_base_model_is(
    kind: str, text_model: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starting = with_adapters(kind, text_model, adapter, "tiny")
    with pytest.raises(SystemExit):
        starting.send(None)
    said = capsys.readouterr().err
    assert "error: --lora-modules: tiny is what the base model is served as" in said


@pytest.mark.parametrize("enters", [True, False])
def test_adapters_of_a_prefill_worker_that_leaves_stay_while_another_is_still_to_enter_its_own(
    text_model: Path,
    adapter: Path,
    told: list[tuple[str, Any, dict[str, Any]]],
    cards: Models,
    monkeypatch: pytest.MonkeyPatch,
    enters: bool,
) -> None:
    """Else these are the last, and frontends end all prefill of the base model."""
    monkeypatch.setattr(worker_module, "STAY_SECONDS", 0.5 if not enters else 10.0)

    async def check() -> None:
        async with poet_starting("prefill", text_model, adapter) as (worker, endpoint):
            await worker.on_endpoint_ready(endpoint)
            await worker._adapters._entering
            cards[5] = {BASE}
            leaving = asyncio.create_task(worker.cleanup())
            await asyncio.sleep(0.2)
            assert names(told, "withdrawn") == [None]
            if enters:
                cards[5].add("poet")
            await leaving
            assert names(told, "withdrawn") == [None, "poet"]

    run(check())
