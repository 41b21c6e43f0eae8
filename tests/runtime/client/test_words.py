from __future__ import annotations

from wavepp_worker.runtime.client.words import duration, listed, requests, tokens


def test_amounts_as_sentences_have_them() -> None:
    assert [duration(each) for each in (-0.1, 0.04, 0.9996, 1.0, 75.25)] == [
        "0 ms",
        "40 ms",
        "1000 ms",
        "1.0 s",
        "75.2 s",
    ]
    assert (tokens(1), tokens(1024), requests(1), requests(2)) == (
        "1 token",
        "1,024 tokens",
        "1 request",
        "2 requests",
    )
    assert [listed("rank", each) for each in ((), (1,), (0, 1), (0, 1, 3))] == [
        "ranks",
        "rank 1",
        "ranks 0 and 1",
        "ranks 0, 1 and 3",
    ]
