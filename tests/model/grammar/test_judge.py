"""Grammars that take too long, too much memory, or a process with them, and those of others meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import InvalidRequest, RequestFailed
from wavepp_worker.model.grammar import judge as judging
from wavepp_worker.model.grammar.grammar import MOST_GRAMMAR_BYTES, Grammar
from wavepp_worker.model.grammar.judge import GrammarJudge

from tests.support.guided import Tokens
from tests.support.tiny_models import VOCABULARY
from tests.support.waiting import WAIT_SECONDS, wait_until

pytest.importorskip("llguidance")

SIMPLE = Grammar("regex", "ab*")


@pytest.fixture
def judge(tiny_llama: Path) -> Iterator[GrammarJudge]:
    judge = GrammarJudge(tiny_llama, VOCABULARY)
    yield judge
    judge.close()


def chain(count: int, link: Callable[[str], Any]) -> Grammar:
    """Definitions of which each refers to the next: compiling them is recursive."""
    defs = {f"n{each}": link(f"#/$defs/n{each + 1}") for each in range(count)}
    return Grammar("json", json.dumps({"$ref": "#/$defs/n0", "$defs": {**defs, f"n{count}": {}}}))


HOSTILE = {
    "a chain of references": chain(1800, lambda ref: {"$ref": ref}),
    "a chain of properties": chain(1100, lambda ref: {"properties": {"a": {"$ref": ref}}}),
    "brackets in brackets": Grammar("json", "[" * MOST_GRAMMAR_BYTES),
    "rules in a row": Grammar("rules", "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(4000)) + "r4000: X"),
    "what may be there or not": Grammar("regex", "(a?b?c?){200}" * 5000),
    "repetitions of repetitions": Grammar("regex", "((((a{0,50}b){0,50}c){0,50}d){0,50}e){0,50}"),
    "all of many": Grammar("json", json.dumps({"allOf": [{"pattern": f"^(.*{c}.*)$"} for c in "abcdefghijklm"]})),
    "a large enum": Grammar("json", json.dumps({"enum": [f"value {n}" for n in range(4500)]})),
    "many properties": Grammar("json", json.dumps({"properties": {f"p{n}": {"type": "integer"} for n in range(1700)}})),
    "no text at all": Grammar("json", '{"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}'),
}  # fmt: skip


def test_hostile_grammars_are_refused_or_compiled_and_hurt_nobody(
    judge: GrammarJudge, tiny_llama: Path
) -> None:
    refused = []
    for name, grammar in HOSTILE.items():
        try:
            judge.judge(grammar).result(WAIT_SECONDS)
        except InvalidRequest:
            refused.append(name)
    first = judge.judge(SIMPLE).result(WAIT_SECONDS)
    assert Tokens(tiny_llama).left(first) == {"a"}, "it judges on"
    assert {"a chain of references", "brackets in brackets", "no text at all"} <= set(refused)


def test_a_grammar_whose_process_dies_is_refused_and_not_tried_again(
    judge: GrammarJudge, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="takes more than 3 s or too much memory to compile"):
            judge.judge(HOSTILE["a chain of references"]).result(WAIT_SECONDS)
    assert len(caplog.records) == 1


def test_a_grammar_that_takes_too_much_of_a_processor_is_refused(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "JUDGE_SECONDS", 0.1)
    judge = GrammarJudge(tiny_llama, VOCABULARY)
    try:
        with pytest.raises(InvalidRequest, match="takes more than"):
            judge.judge(HOSTILE["what may be there or not"]).result(WAIT_SECONDS)
        assert judge.judge(Grammar("regex", "b")).result(WAIT_SECONDS)
    finally:
        judge.close()


def test_that_the_machine_is_busy_is_not_held_against_a_grammar(
    judge: GrammarJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.judge(SIMPLE).result(WAIT_SECONDS)
    process = judge._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(judging, "LONGEST_SECONDS", 0.1)
    with pytest.raises(RequestFailed, match="as this machine is busy; ask again"):
        judge.judge(Grammar("regex", "b")).result(WAIT_SECONDS)
    monkeypatch.undo()
    assert judge.judge(Grammar("regex", "b")).result(WAIT_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_process_that_died_between_two_grammars_costs_nobody_anything(
    judge: GrammarJudge, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    judge.judge(SIMPLE).result(WAIT_SECONDS)
    process = judge._process
    assert process is not None
    os.kill(process.pid, number)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert judge.judge(Grammar("regex", "b")).result(WAIT_SECONDS)
    assert not caplog.records


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
def test_that_others_kill_the_process_is_not_held_against_a_grammar(
    judge: GrammarJudge, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over = judge._hand_over

    def killed(data: bytes) -> Any:
        process = hand_over(data)
        os.kill(process.pid, number)
        return process

    monkeypatch.setattr(judge, "_hand_over", killed)
    slow = HOSTILE["what may be there or not"]
    with pytest.raises(RequestFailed, match=f"was ended by signal {number:d}"):
        judge.judge(slow).result(WAIT_SECONDS)
    monkeypatch.undo()
    error = judge.judge(slow).exception(WAIT_SECONDS)
    assert not isinstance(error, RequestFailed), "it is asked again"


def test_a_process_that_dies_whenever_it_is_asked_is_not_started_for_ever(
    judge: GrammarJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = judge._running

    def dead() -> Any:
        process = running()
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(judge, "_running", dead)
    with pytest.raises(RequestFailed, match="is killed again and again; ask again"):
        judge.judge(SIMPLE).result(WAIT_SECONDS)
    monkeypatch.undo()
    assert judge.judge(SIMPLE).result(WAIT_SECONDS)


def test_what_is_wrong_is_said_each_time_and_compiled_once(
    judge: GrammarJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="unclosed group"):
        judge.judge(Grammar("regex", "(a")).result(WAIT_SECONDS)
    judge.judge(SIMPLE).result(WAIT_SECONDS)
    monkeypatch.setattr(judge, "_ask", lambda grammar: pytest.fail("asked again"))
    with pytest.raises(InvalidRequest, match="unclosed group"):
        judge.judge(Grammar("regex", "(a")).result(0)
    assert judge.judge(SIMPLE).result(0)
    with pytest.raises(InvalidRequest, match="at most 65536"):
        judge.judge(Grammar("regex", "a" * (MOST_GRAMMAR_BYTES + 1)))


def test_nobody_waits_for_ever(judge: GrammarJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    ask = judge._ask
    monkeypatch.setattr(judge, "_ask", lambda grammar: go.wait(WAIT_SECONDS) and ask(grammar))
    running = judge.judge(SIMPLE)
    monkeypatch.setattr(judging, "WAIT_SECONDS", -1.0)
    late = judge.judge(Grammar("regex", "b"))
    go.set()
    with pytest.raises(RequestFailed, match="schemas and grammars of others took"):
        late.result(WAIT_SECONDS)
    assert running.result(WAIT_SECONDS)
    monkeypatch.setattr(judging, "WAIT_SECONDS", 60.0)
    assert judge.judge(Grammar("regex", "b")).result(WAIT_SECONDS), "it is not held against the grammar"


def test_a_model_whose_tokenizer_cannot_be_guided_is_said_to_be_the_cause(tmp_path: Path) -> None:
    judge = GrammarJudge(tmp_path, VOCABULARY)
    try:
        with pytest.raises(InvalidRequest, match="its tokenizer is of a kind that cannot be guided"):
            judge.judge(SIMPLE).result(WAIT_SECONDS)
    finally:
        judge.close()


def test_it_leaves_no_process(tiny_llama: Path) -> None:
    judge = GrammarJudge(tiny_llama, VOCABULARY)
    judge.judge(SIMPLE).result(WAIT_SECONDS)
    process = judge._process
    assert process is not None
    judge.close()
    judge.close()
    wait_until(lambda: process.poll() is not None)
    with pytest.raises(RequestFailed):
        judge.judge(Grammar("regex", "b"))
