"""Model cards as real workers leave them in discovery, by files and by etcd."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from wavepp_worker.dynamo.model_cards import BASE, CardsByWorker, card_reader

from tests.support.etcd_server import EtcdServer, require_etcd

AT = ("a_b", "prefill", "generate")


def models(found: CardsByWorker | None) -> dict[int, set[str]] | None:
    return None if found is None else {worker: {*cards.models} for worker, cards in found.items()}


def test_files(tmp_path: Path) -> None:
    read = card_reader("file", {"DYN_FILE_KV": str(tmp_path)}, AT)
    assert read is not None
    assert read() == {}, "nobody has been there yet"
    bucket = tmp_path / "v1" / "mdc"
    bucket.mkdir(parents=True)
    for name in (
        "a%5Fb%2Fprefill%2Fgenerate%2F5e739d723cacb248",
        "a%5Fb%2Fprefill%2Fgenerate%2F5e739d723cacb248%2Fcoder%2D1",
        "a%5Fb%2Fprefill%2Fgenerate%2F2a%2Fpoet",
        "a%5Fb%2Fbackend%2Fgenerate%2F2a%2Fpoet",
        "other%2Fprefill%2Fgenerate%2F2a",
        "a%5Fb%2Fprefill%2Fgenerate%2Fno%20worker",
        "a%5Fb%2Fprefill%2Fgenerate%2F-1",
        "a%5Fb%2Fprefill%2Fgenerate%2F1_0",
    ):
        (bucket / name).write_text("{}")
    (bucket / "a%5Fb%2Fprefill%2Fgenerate%2F77").mkdir()
    assert models(read()) == {0x5E739D723CACB248: {BASE, "coder-1"}, 42: {"poet"}}


def test_a_card_stays_for_ten_seconds_after_its_file_was_touched_and_counts_until_dynamo_removes_it(
    tmp_path: Path,
) -> None:
    bucket = tmp_path / "v1" / "mdc"
    bucket.mkdir(parents=True)
    read = card_reader("file", {"DYN_FILE_KV": str(tmp_path)}, AT)
    assert read is not None
    for age, model in ((3.0, ""), (8.0, "%2Fpoet")):
        file = bucket / f"a%5Fb%2Fprefill%2Fgenerate%2F2a{model}"
        file.touch()
        os.utime(file, times=(time.time() - age,) * 2)
    now = time.monotonic()
    (cards,) = (read() or {}).values()
    assert cards.models == {BASE, "poet"}
    assert now + 1 < cards.expires < now + 2.5
    for file in bucket.iterdir():
        os.utime(file, times=(time.time() - 14.0,) * 2)
    assert models(read()) == {42: {BASE, "poet"}}
    os.utime(file, times=(time.time() - 16.0,) * 2)
    assert len((read() or {})[42].models) == 1


def test_the_store_that_nobody_names_is_the_one_of_dynamo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    bucket = tmp_path / "dynamo_store_kv" / "v1" / "mdc"
    bucket.mkdir(parents=True)
    (bucket / "a%5Fb%2Fprefill%2Fgenerate%2F2a").write_text("{}")
    read = card_reader("file", {}, AT)
    assert read is not None
    assert models(read()) == {42: {BASE}}


def test_a_store_that_is_no_directory_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "mdc").write_text("")
    read = card_reader("file", {"DYN_FILE_KV": str(tmp_path)}, AT)
    assert read is not None
    assert read() is None


def test_etcd(tmp_path: Path) -> None:
    require_etcd()
    server = EtcdServer(tmp_path)
    server.start()
    read = card_reader("etcd", {"ETCD_ENDPOINTS": server.url}, AT)
    assert read is not None
    try:
        assert read() == {}
        for key in ("a_b/prefill/generate/2a", "a_b/prefill/generate/2a/poet", "a_b/prefill/generate2/2b"):
            server.put(f"v1/mdc/{key}", "{}")
        assert models(read()) == {42: {BASE, "poet"}}
        server.post("/v3/lease/grant", {"ID": "42", "TTL": "600"})
        server.put("v1/mdc/a_b/prefill/generate/2a/poet", "{}", 42)
        now = time.monotonic()
        cards = (read() or {})[42]
        assert now + 590 < cards.expires < now + 602
    finally:
        server.close()
    assert read() is None


@pytest.mark.parametrize("discovery", ["mem", "kubernetes"])
def test_other_discovery_is_not_read(discovery: str) -> None:
    assert card_reader(discovery, {}, AT) is None
