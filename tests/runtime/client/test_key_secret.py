"""The secret of block keys: another one in every life, or kept beside a disk tier."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest
from wavepp_worker import EngineConfig, PrefillEngine, SamplingParams
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.client import key_secret as module
from wavepp_worker.runtime.client.key_secret import SECRET_FILE, key_secret
from wavepp_worker.runtime.client.rank_link import RankLink
from wavepp_worker.runtime.protocol.commands import Command, Submit

from tests.support.prompts import PromptMaker
from tests.support.reference import Reference


def config(disk_path: Path | None = None) -> EngineConfig:
    return EngineConfig(model=Path("model"), disk_path=disk_path)


def test_forged_keys_each_replica_draws_a_secret_of_its_own() -> None:
    secrets = {key_secret(config()) for _ in range(8)}
    assert len(secrets) == 8
    assert {len(secret) for secret in secrets} == {32}


def test_beside_a_disk_tier_it_survives_a_restart_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    secret = key_secret(config(folder))
    assert key_secret(config(folder)) == secret == (folder / SECRET_FILE).read_bytes()
    assert stat.S_IMODE((folder / SECRET_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [each.name for each in folder.iterdir()] == [SECRET_FILE]
    (folder / SECRET_FILE).unlink()
    assert key_secret(config(folder)) != secret


def test_of_two_that_make_it_at_once_both_use_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = []
    create = module._create

    def late(path: Path) -> None:
        monkeypatch.setattr(module, "_create", create)
        first.append(key_secret(config(tmp_path)))
        create(path)

    monkeypatch.setattr(module, "_create", late)
    assert [key_secret(config(tmp_path))] == first
    assert [each.name for each in tmp_path.iterdir()] == [SECRET_FILE]


def test_a_file_that_others_can_read_is_refused_and_one_that_is_damaged_replaced(tmp_path: Path) -> None:
    path = tmp_path / SECRET_FILE
    path.write_bytes(bytes(32))
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"disk_path: .* only this user can read.*delete it"):
        key_secret(config(tmp_path))
    path.chmod(0o600)
    assert key_secret(config(tmp_path)) == bytes(32)
    for size in (0, 31, 33):
        path.write_bytes(bytes(size))
        secret = key_secret(config(tmp_path))
        assert len(secret) == 32
        assert secret == key_secret(config(tmp_path)) != bytes(32)
    path.unlink()
    os.symlink(tmp_path / "elsewhere", path)
    (tmp_path / "elsewhere").write_bytes(bytes(32))
    with pytest.raises(ConfigError, match=r"disk_path: cannot use"):
        key_secret(config(tmp_path))


def test_a_pipe_in_its_place_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SECRET_FILE, 0o600)
    began = time.monotonic()
    # So that one who waits is let go of.
    rescue = threading.Timer(5.0, lambda: os.close(os.open(tmp_path / SECRET_FILE, os.O_RDWR)))
    rescue.start()
    with pytest.raises(ConfigError, match=r"disk_path: .* only this user can read.*delete it"):
        key_secret(config(tmp_path))
    rescue.cancel()
    assert time.monotonic() - began < 4


def test_a_place_where_no_file_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"disk_path: cannot use .*create files in"):
        key_secret(config(tmp_path / "file"))


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that engines sent to their ranks."""
    keys: list[bytes] = []
    send = RankLink.send

    def noted(link: RankLink, command: Command) -> None:
        if isinstance(command, Submit):
            keys.append(command.keys)
        send(link, command)

    monkeypatch.setattr(RankLink, "send", noted)
    return keys


def test_forged_keys_of_one_replica_are_nothing_to_another(
    tiny_llama: Path, reference: Reference, submitted: list[bytes]
) -> None:
    """Each life makes other keys of one prompt, so what is learnt of one cannot be used on another."""
    prompt = PromptMaker(seed=19).tokens(100)
    best = int(reference.next_logprobs(prompt).argmax())
    for _ in range(2):
        with PrefillEngine(EngineConfig(model=tiny_llama, dtype="float32", pp=2)) as engine:
            results = [engine.prefill(prompt), engine.prefill(prompt), engine.prefill(prompt, salt="tenant")]
        assert [result.reused_tokens for result in results] == [0, 96, 0]
        assert [result.first_token for result in results] == [best] * 3
    first, again, salted, *others = submitted
    assert len(first) == 16 * 6
    assert first == again
    pieces = [
        [keys[at : at + 16] for at in range(0, 96, 16)] for keys in (first, salted, others[0], others[2])
    ]
    assert len({key for piece in pieces for key in piece}) == 4 * 6
    assert others[0] == others[1]


def test_a_disk_tier_is_of_no_use_without_its_secret(
    tiny_llama: Path, reference: Reference, tmp_path: Path, submitted: list[bytes]
) -> None:
    """It begins anew, and what it held is computed again."""
    prompt, folder = PromptMaker(seed=20).tokens(100), tmp_path / "kv"
    config = EngineConfig(
        model=tiny_llama,
        dtype="float32",
        pp=2,
        kv_tokens=640,
        max_model_len=640,
        disk_kv_tokens=640,
        disk_path=folder,
    )
    reused = []
    for life in range(4):
        if life == 2:
            (folder / SECRET_FILE).unlink()
        with PrefillEngine(config) as engine:
            result = engine.prefill(prompt)
            engine.audit()
        assert result.first_token == int(reference.next_logprobs(prompt).argmax())
        reused.append(result.reused_tokens)
    assert reused == [0, 96, 0, 96]
    assert submitted[0] == submitted[1] != submitted[2] == submitted[3]


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_a_first_token_is_chosen_by_reaches_the_last_rank(
    tiny_llama: Path, reference: Reference, ranks: int
) -> None:
    """It has no prompts: a penalty counts the tokens that rank 0 tells it of, also those that were not computed."""
    prompt = [*PromptMaker(seed=21).tokens(70), int(reference.next_logprobs([1, 2, 3]).argmax())]
    logprobs = reference.next_logprobs(prompt)
    best = int(logprobs.argmax())
    prompt = [best, *prompt]
    logprobs = reference.next_logprobs(prompt)
    with PrefillEngine(EngineConfig(model=tiny_llama, dtype="float32", pp=ranks)) as engine:
        for _ in range(2):
            penalised = engine.prefill(prompt, sampling=SamplingParams(repetition_penalty=1000.0))
            plain = engine.prefill(prompt)
            assert penalised.first_token not in prompt
            assert plain.first_token == int(logprobs.argmax())
