"""The launcher with services that only pretend, and misbehave."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest
from wavepp_worker.liveness.stop_times import FRONTEND_VARIABLE, GRACE_VARIABLE, WORKER_VARIABLE
from wavepp_worker.serve.child import Child

from tests.support.graph_process import RunningGraph, Starter

SMALL_TALK = "2026-11-22T10:31:07.366627Z  INFO dynamo_llm::model_card: wrapping tokenizer in L1 prefix cache"


def alive(pid: int) -> bool:
    """Not gone, and not just waiting to be collected by process 1."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_comes_up_says_so_once_and_stops_in_order(start_dummies: Starter, tmp_path: Path) -> None:
    order = tmp_path / "order"
    logged = [f"--{name}.stop_log={order}" for name in ("Front", "Decode", "Prefill")]
    words = [*logged, "--Decode.ServiceArgs.envs.COLOUR=007", "--stop-timeout=7"]
    with start_dummies(*words) as graph:
        graph.wait_ready()
        assert graph.log().count("ready in") == 1
        assert f"curl -s {graph.base_url}/v1/chat/completions" in graph.log()
        assert graph.model == "dummy-model"
        assert graph.log().count("prefill: float32 on cpu, 2 ranks of 5 + 3 layers; KV 4,096 tokens") == 2
        assert f"metrics http://127.0.0.1:{graph.processes('Decode')[0]['port']}/metrics" in graph.log()
        assert stat.S_IMODE(graph.run_dir.stat().st_mode) == 0o700
        assert len(graph.pids()) == 4
        environment = _get(graph.processes("Decode")[0]["port"])["environment"]
        assert environment["COLOUR"] == "007"
        assert environment["DYN_FILE_KV"] == str(graph.run_dir / "store")
        assert environment["DYN_TCP_RPC_HOST"] == "127.0.0.1"
        assert (environment[WORKER_VARIABLE], environment[FRONTEND_VARIABLE]) == ("12", "7")
        assert graph.stop() == 0
        assert order.read_text().split() == ["front", "decode", "prefill", "prefill"]
        assert "SIGINT: stopping, requests have 7 s to end, everything ends within 19 s" in graph.log()


def test_what_nobody_asks_for_is_as_dynamo_has_it(start_dummies: Starter) -> None:
    with start_dummies(env={GRACE_VARIABLE: ""}) as graph:
        graph.wait_ready()
        environment = _get(graph.processes("Decode")[0]["port"])["environment"]
        assert environment[GRACE_VARIABLE] == "", "as it was given"
        assert not environment.keys() & {WORKER_VARIABLE, FRONTEND_VARIABLE}
        assert graph.stop() == 0
        assert "SIGINT: stopping, requests have 5 s to end, everything ends within 45 s" in graph.log()


def test_dead_service_is_reported_with_its_last_words_and_restarted(
    start_dummies: Starter, tmp_path: Path
) -> None:
    with start_dummies("--Decode.say=goodbye cruel world") as graph:
        graph.wait_ready()
        first = graph.processes("Decode")[0]["pid"]
        os.kill(first, signal.SIGKILL)
        graph.wait_for(lambda: graph.processes("Decode")[0]["restarts"] == 1)
        graph.wait_for(lambda: graph.processes("Decode")[0]["ready"])
        second = graph.processes("Decode")[0]["pid"]
        assert second != first
        assert "Decode:0 was ended by SIGKILL (by somebody" in graph.log()
        assert "and is restarted in 1 s (restart 1); its last words:" in graph.log()
        assert "> goodbye cruel world" in graph.log()
        os.kill(second, signal.SIGKILL)
        graph.wait_for(lambda: "restarted in 2 s" in graph.log())
        assert all(entry["restarts"] == 0 for entry in graph.processes("Prefill"))
        assert graph.stop() == 0


def test_what_a_killed_service_left_is_removed(start_dummies: Starter) -> None:
    with start_dummies() as graph:
        graph.wait_ready()
        before = graph.processes("Decode")[0]
        scratch = Path(_get(before["port"])["environment"]["TMPDIR"])
        assert scratch.parent.parent == graph.run_dir
        (scratch / "socket-of-a-dead-process").touch()
        os.kill(before["pid"], signal.SIGKILL)
        graph.wait_for(lambda: graph.processes("Decode")[0]["pid"] not in (None, before["pid"]))
        graph.wait_for(lambda: graph.processes("Decode")[0]["ready"])
        assert list(scratch.iterdir()) == []
        others = [Path(_get(each["port"])["environment"]["TMPDIR"]) for each in graph.processes("Prefill")]
        assert len({scratch, *others}) == 3
        assert graph.stop() == 0


def test_without_room_for_its_own_files_everything_else_goes_on(start_dummies: Starter) -> None:
    """A full temporary directory while a process is started again must not end the whole graph."""
    with start_dummies() as graph:
        graph.wait_ready()
        scratch, gone = graph.run_dir / "tmp", graph.run_dir / "gone"
        scratch.rename(gone)
        (graph.run_dir / ".state.json").mkdir()
        os.kill(graph.processes("Decode")[0]["pid"], signal.SIGKILL)
        graph.wait_for(lambda: "Decode:0 cannot be started now" in graph.log())
        assert "state.json cannot be written" in graph.log()
        gone.rename(scratch)
        graph.wait_for(lambda: "Decode:0 is up again" in graph.log())
        (graph.run_dir / ".state.json").rmdir()
        assert graph.stop() == 0


def test_a_log_that_cannot_be_written_ends_nothing(start_dummies: Starter) -> None:
    """As where the disk that it is redirected to is full."""
    with start_dummies("--Decode.say=hello", to=Path("/dev/full")) as graph:
        graph.wait_for(lambda: graph.state().get("ready"))
        os.kill(graph.processes("Decode")[0]["pid"], signal.SIGKILL)
        graph.wait_for(lambda: graph.processes("Decode")[0]["restarts"] == 1)
        graph.wait_for(lambda: graph.processes("Decode")[0]["ready"])
        graph.stop()


def test_a_log_that_nobody_reads_holds_nothing_up(start_dummies: Starter, tmp_path: Path) -> None:
    """As a pipe to a pager that waits for a key."""
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with start_dummies(f"--Decode.say={'x' * 9000}", to=pipe) as graph:
            graph.wait_for(lambda: graph.state().get("ready"))
            os.kill(graph.processes("Decode")[0]["pid"], signal.SIGKILL)
            graph.wait_for(lambda: graph.processes("Decode")[0]["restarts"] == 1)
            graph.wait_for(lambda: graph.processes("Decode")[0]["ready"])
            assert graph.stop() == 0
    finally:
        os.close(reader)


def test_a_frontend_that_finds_nobody_is_started_anew(start_dummies: Starter, tmp_path: Path) -> None:
    mark = tmp_path / "nobody"
    with start_dummies(f"--Front.finds_nobody={mark}") as graph:
        graph.wait_ready()
        mark.touch()
        graph.wait_for(lambda: graph.processes("Front")[0]["restarts"] == 1, 60)
        assert "Front finds no worker, though all are there, and is killed" in graph.log().replace(":0", "")
        graph.wait_for(lambda: graph.processes("Front")[0]["ready"])
        assert all(entry["restarts"] == 0 for entry in graph.processes("Prefill"))
        assert graph.stop() == 0


def test_service_that_fails_at_first_still_comes_up(start_dummies: Starter, tmp_path: Path) -> None:
    with start_dummies("--Prefill.exit_code=3", f"--Prefill.once={tmp_path / 'died'}") as graph:
        graph.wait_ready()
        assert "ended with exit code 3" in graph.log()
        assert graph.stop() == 0


def test_refused_configuration_fails_the_start_with_its_sentence(start_dummies: Starter) -> None:
    with start_dummies("--Prefill.exit_code=2", "--Prefill.say=error: pp: too many stages") as graph:
        assert graph.wait_exit(30) == 2
        assert "error: Prefill:" in graph.log()
        assert "pp: too many stages" in graph.log().splitlines()[-1]
        assert "restarted" not in graph.log()


def test_start_that_takes_too_long_says_what_is_missing(start_dummies: Starter) -> None:
    small_talk = f"--Prefill.say={SMALL_TALK}"
    with start_dummies(
        "--Decode.sick_after=0", "--Decode.say=loading", small_talk, "--start-timeout", "5"
    ) as graph:
        assert graph.wait_exit(30) == 1
        assert SMALL_TALK in graph.log(), "it may say why"
        last = graph.log().splitlines()[-2:]
        assert "not ready after 5 s" in last[0]
        assert "Decode:0" in last[0]
        assert "Decode:0 said last: loading" in last[1]


def test_worker_unknown_to_the_frontend_is_waited_for(start_dummies: Starter) -> None:
    with start_dummies("--Front.workers_known=2", "--start-timeout", "2") as graph:
        assert graph.wait_exit(30) == 1
        assert "the frontend to find all workers" in graph.log()


def test_a_template_that_the_frontend_cannot_use_ends_the_start(start_dummies: Starter) -> None:
    said = "ERROR could not add model: prompt_formatter_from_mdc: syntax error: unexpected tag (in x:1)"
    with start_dummies("--Front.workers_known=2", f"--Front.say={said}") as graph:
        assert graph.wait_exit(30) == 2
        last = graph.log().splitlines()[-1]
        assert last.startswith("error: model: Dynamo's frontend cannot use the model's chat template (syntax")
        assert "unexpected tag (in x:1)); mend it" in last


def test_children_that_left_the_session_are_gone_too(start_dummies: Starter) -> None:
    with start_dummies("--Prefill.grandchild") as graph:
        graph.wait_ready()
        pids = graph.pids()
        assert len(pids) == 6
        assert graph.stop() == 0
        assert not any(map(alive, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_too(start_dummies: Starter, number: signal.Signals) -> None:
    with start_dummies() as graph:
        graph.wait_ready()
        assert graph.stop(number) == 0


def test_signal_during_start_stops_it(start_dummies: Starter) -> None:
    with start_dummies("--Decode.sick_after=0") as graph:
        graph.wait_for(lambda: "Prefill:1 is up" in graph.log())
        assert graph.stop() == 0
        assert "ready in" not in graph.log()


def test_second_interrupt_kills_at_once(start_dummies: Starter) -> None:
    with start_dummies("--Front.ignore_term", "--Prefill.grandchild") as graph:
        graph.wait_ready()
        graph.process.send_signal(signal.SIGINT)
        graph.wait_for(lambda: "stopping Front" in graph.log())
        assert graph.stop(seconds=5) == 0
        assert "everything is killed" in graph.log()
        assert "stopping Decode" not in graph.log().partition("killing everything")[2]


def test_killed_launcher_leaves_nothing(start_dummies: Starter) -> None:
    with start_dummies("--Prefill.grandchild", "--Decode.ignore_term") as graph:
        graph.wait_ready()
        pids = graph.pids()
        graph.process.kill()
        graph.process.wait()
        graph.assert_nothing_left()
        assert not any(map(alive, pids))


def test_orphans_of_a_dead_service_do_not_outlive_the_run(start_dummies: Starter) -> None:
    with start_dummies("--Prefill.grandchild") as graph:
        graph.wait_ready()
        os.kill(graph.processes("Prefill")[0]["pid"], signal.SIGKILL)
        graph.wait_for(lambda: graph.processes("Prefill")[0]["restarts"] == 1)
        assert graph.stop() == 0


def test_sick_service_is_restarted(start_dummies: Starter) -> None:
    with start_dummies("--Decode.sick_after=2") as graph:
        graph.wait_ready()
        graph.wait_for(lambda: "Decode:0 has reported itself unhealthy" in graph.log(), 30)
        graph.wait_for(lambda: graph.processes("Decode")[0]["restarts"] == 1)
        assert graph.stop() == 0


def test_port_in_use(start_dummies: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with start_dummies("--port", str(port)) as graph:
            assert graph.wait_exit(20) == 2
            assert f"--port: port {port} of 127.0.0.1 is in use" in graph.log()
        with start_dummies(f"--Front.http_port={port}") as graph:
            assert graph.wait_exit(20) == 2
            assert f"Front.http_port: port {port} of 127.0.0.1 is in use" in graph.log()


def test_run_dir_in_use(start_dummies: Starter) -> None:
    with start_dummies() as graph:
        graph.wait_ready()
        with start_dummies("--run-dir", str(graph.run_dir)) as second:
            second.run_dir.mkdir()
            (second.run_dir / "precious").touch()
            second.process.wait(20)
            assert "is not empty, and would be removed" in second.log()
            assert (second.run_dir / "precious").exists()
        assert graph.processes("Front")[0]["ready"]
        assert graph.stop() == 0


def _get(port: int) -> dict[str, dict[str, str]]:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        body: dict[str, dict[str, str]] = json.loads(answer.read())
        return body


def test_log_names_every_line_and_leaves_small_talk_out(start_dummies: Starter) -> None:
    with start_dummies("--Decode.say=hello there", f"--Prefill.say={SMALL_TALK}") as graph:
        graph.wait_ready()
        assert any(line.startswith("Decode:0 ") and "hello there" in line for line in _lines(graph))
        assert graph.stop() == 0
        assert SMALL_TALK not in graph.log()


def test_every_line_is_a_json_object_where_that_is_asked_for(
    start_dummies: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_LOGGING_JSONL", "1")
    said = '{"level": "INFO", "target": "dynamo_x", "message": "hello"}'
    with start_dummies("-v", f"--Decode.say={said}", "--Prefill.say=plain words") as graph:
        graph.wait_ready()
        os.kill(graph.processes("Decode")[0]["pid"], signal.SIGKILL)
        graph.wait_for(lambda: graph.processes("Decode")[0]["restarts"] == 1)
        assert graph.stop() == 0
        entries = [json.loads(line) for line in _lines(graph)]
    assert all({"time", "level", "target", "message", "process"} <= entry.keys() for entry in entries)
    told = {(entry["process"], entry["level"], entry["message"]) for entry in entries}
    assert ("Decode:0", "INFO", "hello") in told
    assert ("Prefill:1", "INFO", "plain words") in told
    assert ("dynamo serve", "INFO", "Ctrl-C stops everything") in told
    assert any(level == "ERROR" and "SIGKILL" in message for _, level, message in told)


def _lines(graph: RunningGraph) -> list[str]:
    return graph.log().splitlines()


def test_who_is_asked_to_leave_stops_its_own_children() -> None:
    """Signalled with it, a worker's ranks would be gone before its requests have ended."""
    inner = "trap 'echo inner' TERM; echo up; while :; do sleep 0.05; done"
    outer = f'trap "sleep 0.3; echo outer; exit 7" TERM; bash -c "{inner}" & while :; do sleep 0.05; done'

    async def check() -> None:
        lines: list[str] = []
        child = await Child.start(["bash", "-c", outer], os.environ, lines.append)
        try:
            for _ in range(200):
                if lines:
                    break
                await asyncio.sleep(0.02)
            child.terminate()
            assert await asyncio.wait_for(child.wait(), 10) == 7
        finally:
            child.kill()
        assert lines == ["up", "outer"]

    asyncio.run(check())
