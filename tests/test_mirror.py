"""The tests mirror the packages: ``cache/pool.py`` is tested by ``tests/cache/test_pool.py``, and so on."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "components" / "wavepp_worker"
PACKAGES = ("cache", "decode", "dynamo", "handoff", "intake", "liveness", "model", "runtime", "serve")
DECISIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.comprehension, ast.BoolOp)
"""A module without any of them in a function has no logic of its own."""


class Together(NamedTuple):
    """What a test file shows of several modules, and those that have no other file of their own."""

    shows: str
    modules: tuple[str, ...] = ()


SEVERAL_MODULES = {
    "cache/test_promises.py": Together(
        "the numbered promises of a rank's cache, checked by its own audit",
        ("cache/audit.py", "cache/escrow.py", "cache/victims.py"),
    ),
    "cache/test_cache_machine.py": Together("random calls against a naive model"),
    "cache/test_ownership_scenarios.py": Together("numbered scenarios of who holds what"),
    "cache/test_reconciliation.py": Together("several ranks' caches agree on an endpoint"),
    "runtime/tiers/test_stream_orders.py": Together(
        "waves, copies between tiers and reads of the hand-off in any order of a GPU's streams"
    ),
    "runtime/tiers/test_disk_store.py": Together(
        "the file survives restarts and damage",
        ("runtime/tiers/disk_file.py", "runtime/tiers/disk_format.py"),
    ),
    "cache/windows/test_kinds.py": Together(
        "the same questions to every kind of window",
        ("cache/windows/attention.py", "cache/windows/recurrent.py", "cache/windows/window.py"),
    ),
    "model/test_experts.py": Together("experts of transformers' models multiply in groups"),
    "decode/test_adapters.py": Together("answers through LoRA adapters"),
    "runtime/client/test_adapters.py": Together("requests through LoRA adapters over real ranks"),
    "decode/test_handoff.py": Together("the decode engine behind a real hand-off"),
    "dynamo/test_conformance.py": Together("Dynamo's conformance kit on our workers"),
    "dynamo/test_prefill.py": Together("the worker's side of Dynamo", ("dynamo/prefill_handler.py",)),
    "dynamo/test_decode.py": Together("the worker's side of Dynamo", ("dynamo/decode_handler.py",)),
    "dynamo/test_args.py": Together("flags as a user types them", ("dynamo/flags.py",)),
    "dynamo/test_traced_requests.py": Together("the spans that workers on fake engines record of requests"),
    "dynamo/test_kv_events_at_a_router.py": Together("our events at a router of Dynamo's own"),
    "intake/test_intake.py": Together(
        "a replica and the queue that it takes jobs from",
        (
            "intake/answer_wait.py",
            "intake/job_consumers.py",
            "intake/job_ledger.py",
            "intake/job_runner.py",
            "intake/queue_client.py",
            "intake/streams.py",
            "intake/taken_job.py",
        ),
    ),
    "intake/test_small_payload.py": Together("a queue on a server that takes little"),
    "intake/test_killed.py": Together("workers and a server that are killed under load"),
    "intake/test_soak.py": Together("five hundred jobs while all that runs them is killed at random"),
    "dynamo/test_guided_answers.py": Together("answers to random schemas by a worker with real engines"),
    "model/test_fp8_kv.py": Together("what a stage keeps in FP8, and what it computes of that"),
    "model/gpu/test_flashinfer_attention.py": Together(
        "kernels that have to prove themselves",
        ("model/gpu/flashinfer_library.py", "model/gpu/paged_kernel_check.py"),
    ),
    "model/grammar/test_judge.py": Together("grammars of strangers", ("model/grammar/judge_process.py",)),
    "serve/test_replicas.py": Together("processes beside those of the start", ("serve/process.py",)),
    "serve/test_scaler.py": Together(
        "the launcher with Dynamo's own coordinator", ("serve/planner_link.py",)
    ),
    "handoff/test_transport.py": Together("with and without NIXL", ("handoff/nixl/library.py",)),
    "handoff/test_transfer.py": Together(
        "a hand-off from end to end over both transports",
        (
            "handoff/decode/nixl_reader.py",
            "handoff/nixl/registered_memory.py",
            "handoff/prefill/nixl_source.py",
            "handoff/prefill/socket_source.py",
        ),
    ),
    "handoff/test_damaged_messages.py": Together("a decode worker whose prefill worker is broken or hostile"),
    "handoff/test_interleavings.py": Together("any order of events settles everything once"),
    "handoff/test_killed.py": Together("a decode worker killed during a transfer"),
    "handoff/connection/test_channel.py": Together(
        "messages over a real connection, and its end",
        (
            "handoff/claim_messages.py",
            "handoff/connection/change_signal.py",
            "handoff/connection/tasks.py",
            "handoff/pull_messages.py",
        ),
    ),
    "model/test_packing.py": Together("any packing over any division of the layers"),
    "model/test_packed_evictions.py": Together(
        "packings, evictions and chunks of every family drawn together"
    ),
    "runtime/client/test_engine.py": Together(
        "an engine and its rank processes",
        (
            "runtime/client/auditor.py",
            "runtime/client/rank_events.py",
            "runtime/client/rank_link.py",
            "runtime/client/rank_processes.py",
            "runtime/client/stats.py",
            "runtime/rank/loop_thread.py",
            "runtime/rank/main.py",
        ),
    ),
    "runtime/client/test_rank_configs.py": Together(
        "what is refused and worked out before a rank starts",
        ("runtime/client/config_checks.py", "runtime/client/kv_pools.py"),
    ),
    "runtime/client/test_prompt_file.py": Together("a file of prompts", ("runtime/client/file_run.py",)),
    "runtime/client/test_disk_tier.py": Together("engines over disk tiers that outlive them"),
    "runtime/client/test_hangs.py": Together("an engine whose ranks, or whose own thread, hang"),
    "runtime/client/test_handoff_lifetime.py": Together("KV that is held for a decode worker"),
    "runtime/client/test_steady_load.py": Together("load that never pauses"),
    "runtime/client/test_socket_files.py": Together("what is no message, at the files that ranks meet at"),
    "runtime/client/test_attention_kinds.py": Together(
        "windows, latents and indexers on real ranks, and decode"
    ),
    "runtime/client/test_recurrent_engine.py": Together("models with recurrent layers on real ranks"),
    "runtime/client/test_unwritten_blocks.py": Together("ranks whose blocks hold no numbers until written"),
    "runtime/client/test_soak.py": Together("storms of requests and aborts over full caches"),
    "runtime/planning/test_every_planner.py": Together(
        "what holds of every planner", ("runtime/planning/planner.py",)
    ),
    "runtime/trace/test_traced_runs.py": Together("the trace of real runs"),
    "serve/test_status.py": Together("the runs that are there", ("serve/runs.py",)),
    "serve/test_launch_plan.py": Together(
        "what a plan says before anything starts",
        ("serve/flag_check.py", "serve/http_address.py", "serve/model_choice.py"),
    ),
    "serve/test_supervisor.py": Together(
        "launches of services that only pretend, and misbehave",
        (
            "serve/child.py",
            "serve/launch.py",
            "serve/log.py",
            "serve/orphans.py",
        ),
    ),
    "serve/test_dynamo_planes.py": Together("Dynamo's own sample over our planes", ("serve/broker.py",)),
    "simulator/test_mutants.py": Together("planted mistakes are noticed by schedules"),
    "simulator/test_simulator.py": Together(
        "schedules of all ranks' threads",
        ("runtime/admission/ownership.py", "runtime/admission/actions.py", "runtime/rank/parts.py"),
    ),
}


def has_logic(module: Path) -> bool:
    return any(
        isinstance(node, DECISIONS)
        for function in ast.walk(ast.parse(module.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    )


def modules() -> set[str]:
    files = (file for package in PACKAGES for file in (PACKAGE / package).rglob("*.py"))
    return {str(file.relative_to(PACKAGE)) for file in files if file.name != "__init__.py"}


def own_test(module: str) -> Path:
    return TESTS / Path(module).with_name(f"test_{Path(module).name}")


def excepted() -> set[str]:
    return {module for together in SEVERAL_MODULES.values() for module in together.modules}


def test_every_module_with_logic_is_tested_where_its_path_says() -> None:
    lacking = {each for each in modules() if has_logic(PACKAGE / each) and not own_test(each).exists()}
    assert sorted(lacking - excepted()) == [], "write these modules' tests beside those of their package"


def test_every_test_file_is_a_modules_or_says_what_it_shows() -> None:
    files = {file for package in PACKAGES for file in (TESTS / package).rglob("test_*.py")}
    strays = files - {own_test(each) for each in modules()} - {TESTS / name for name in SEVERAL_MODULES}
    assert sorted(str(file.relative_to(TESTS)) for file in strays) == [], "name them after what they test"


def test_no_exception_is_older_than_its_reason() -> None:
    assert sorted(name for name in SEVERAL_MODULES if not (TESTS / name).exists()) == [], "gone"
    assert sorted(excepted() - modules()) == [], "gone"
    assert sorted(each for each in excepted() if own_test(each).exists()) == [], (
        "tested by files of their own"
    )
