"""What is said of a request that a decode engine has, at each place where it can be."""

from __future__ import annotations

import time
from typing import Any

import torch
from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.model.grammar.grammar import Grammar

from tests.support.decoding_requests import decoding


def told(scheduler: Scheduler, name: str) -> tuple[str, str]:
    (found,) = scheduler.whereabouts(name, 20)
    assert found.request_id == name
    return found.state, found.sentence


def added(scheduler: Scheduler, name: str, **values: Any) -> DecodingRequest:
    request, _ = decoding(name, **{"prompt_tokens": 4, "max_tokens": 8, **values})
    request.computed = True
    scheduler.add(request)
    return request


def test_each_place_has_its_sentence() -> None:
    scheduler = Scheduler(Batch(blocks=8, max_num_seqs=8), block_size=1)
    first, second = (
        added(scheduler, "first", max_tokens=1),
        added(scheduler, "second", prompt_tokens=7, max_tokens=2),
    )
    state, sentence = told(scheduler, "first")
    assert (state, sentence.startswith("waits for a prefill worker to offer its KV (bootstrap_room")) == (
        "arriving",
        True,
    )
    for request in (first, second):
        scheduler.ask_for_blocks(request, lambda blocks: None)
    first.table = torch.arange(4)
    assert told(scheduler, "first") == (
        "receiving",
        "has 4 blocks, and waits for the KV of its prompt and its first token",
    )
    assert told(scheduler, "second") == (
        "waiting",
        "waits for 8 blocks of KV, of which 4 are free, behind 0 others",
    )
    added(scheduler, "third", priority=1, max_tokens=5)
    scheduler.ask_for_blocks(scheduler._live["third"], lambda blocks: None)
    assert told(scheduler, "second")[1].endswith("behind 1 other")
    scheduler.start(first)
    first.sequence.accept(7)
    assert told(scheduler, "first") == ("running", "has 1 of at most 1 tokens")
    first.logits = torch.zeros(3)
    assert (
        told(scheduler, "first")[1] == "has 1 of at most 1 tokens, and waits for what its grammar lets follow"
    )


def test_who_was_preempted_is_told_apart_from_who_never_had_blocks() -> None:
    scheduler = Scheduler(Batch(blocks=24, max_num_seqs=8), block_size=1)
    first, second = added(scheduler, "first"), added(scheduler, "second", prompt_tokens=2)
    for request in (first, second):
        request.computed = True
        scheduler.ask_for_blocks(request, lambda blocks: None)
        scheduler.start(request)
        request.sequence.accept(7)
    with scheduler._lock:
        scheduler._preempt(second)
    state, sentence = told(scheduler, "second")
    assert (state, sentence.startswith("was preempted after 1 of at most 8 tokens, and waits for")) == (
        "preempted",
        True,
    )


def test_a_grammar_that_is_compiled_and_a_prompt_that_runs_here_are_said() -> None:
    scheduler = Scheduler(Batch(blocks=8, max_num_seqs=8), block_size=1)
    added(scheduler, "guided", grammar=Grammar("regex", "a"))
    assert told(scheduler, "guided") == ("arriving", "waits for what its answer must match to be compiled")
    own = added(scheduler, "own", handoff=None, max_tokens=2)
    assert told(scheduler, "own") == ("arriving", "is about to ask for blocks")
    scheduler.ask_for_blocks(own, lambda blocks: None)
    scheduler.start(own)
    assert told(scheduler, "own") == ("running", "has 0 tokens of its prompt computed here, of 4")


def test_the_first_are_told_of_and_nothing_of_who_is_over() -> None:
    scheduler = Scheduler(Batch(blocks=8, max_num_seqs=8), block_size=1)
    requests = [added(scheduler, f"r{number}") for number in range(5)]
    requests[3].submitted = time.monotonic() - 9.0
    found = scheduler.whereabouts(None, 2)
    assert [each.request_id for each in found] == ["r3", "r0"]
    assert found[0].seconds >= 9.0
    scheduler.finish(requests[3], "cancelled")
    assert scheduler.whereabouts("r3", 2) == []
