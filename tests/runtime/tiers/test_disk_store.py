from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.block_keys import KEY_BYTES
from wavepp_worker.errors import AuditError, CacheCorrupt, ConfigError
from wavepp_worker.runtime.tiers import disk_store
from wavepp_worker.runtime.tiers.disk_store import DiskStore

BYTES = 5000
SLOTS = 8
PRINT = "tiny, float32, layers 0 to 3, blocks of 16 tokens, rank 0 of 2"

# Writes for ever; the content of a block is a function of its key, so a reader can judge it.
WRITER = """
import random, sys
from pathlib import Path
from wavepp_worker.runtime.tiers.disk_store import DiskStore
store = DiskStore(Path(sys.argv[1]), 4, 1 << 20, "killed")
rng = random.Random(int(sys.argv[2]))
for count in range(1, 1 << 40):
    key = rng.getrandbits(64)
    store.write(rng.randrange(4), key.to_bytes(16, "little"), None, random.Random(key).randbytes(1 << 12) * 256)
    if count == 8:
        print("writing", flush=True)
"""


def block(key: int) -> bytes:
    return random.Random(key).randbytes(BYTES)


class NumberedStore(DiskStore):
    """Keys are numbers in these tests."""

    def records(self) -> list[Any]:
        return [
            each._replace(key=number(each.key), parent=None if each.parent is None else number(each.parent))
            for each in super().records()
        ]

    def write(self, slot: int, key: int, parent: int | None, payload: Any, origin: bytes = b"") -> None:
        super().write(slot, key_of(key), None if parent is None else key_of(parent), payload, origin)

    def read_into(self, slot: int, key: int, out: Any) -> None:
        super().read_into(slot, key_of(key), out)


def key_of(number: int | bytes) -> bytes:
    """A store that calls itself has keys already."""
    return number if isinstance(number, bytes) else number.to_bytes(KEY_BYTES, "little")


def number(key: bytes) -> int:
    return int.from_bytes(key, "little")


def make(
    path: Path,
    slots: int = SLOTS,
    block_bytes: int = BYTES,
    fingerprint: str = PRINT,
    origin_bytes: int = 0,
) -> NumberedStore:
    return NumberedStore(path, slots, block_bytes, fingerprint, origin_bytes)


def read(store: NumberedStore, slot: int, key: int) -> bytes:
    out = bytearray(store.block_bytes)
    store.read_into(slot, key, out)
    return bytes(out)


def held(store: NumberedStore) -> list[tuple[int, int | None, int]]:
    return [(block.key, block.parent, block.slot) for block in store.records()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "rank0.blocks"


def overwrite(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_blocks_survive_a_restart(path: Path) -> None:
    top = 2**64 - 1
    store = make(path)
    for slot, key, parent in ((3, top, None), (0, 7, top), (5, 9, 0), (1, 11, None)):
        store.write(slot, key, parent, block(key))
    store.drop(1)
    before = held(store)
    assert before == [(top, None, 3), (7, top, 0), (9, 0, 5)]
    store.close()
    store.close()
    store = make(path)
    assert held(store) == before
    assert [read(store, slot, key) for key, _, slot in before] == [block(key) for key, _, _ in before]
    store.check()


def test_what_is_not_to_be_kept_is_not_found_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the table of records is read in parts."""
    monkeypatch.setattr(disk_store, "TABLE_READ_BYTES", 1)
    store = make(path)
    for slot in range(SLOTS):
        store.write(slot, slot + 1, None, block(slot + 1))
    store.keep_only({2, 5})
    assert read(store, 2, 3) == block(3)
    with pytest.raises(CacheCorrupt, match="holds no block"):
        read(store, 1, 2)
    store.close()
    store = make(path)
    assert held(store) == [(3, None, 2), (6, None, 5)]
    store.check()


def test_a_slot_holds_what_was_written_last_and_a_key_counts_once(path: Path) -> None:
    store = make(path)
    store.write(0, 1, None, block(1))
    store.write(0, 3, None, block(3))
    store.write(5, 2, 1, block(2))
    store.close()
    store = make(path)
    store.write(4, 2, 3, block(2))
    assert held(store) == [(3, None, 0), (2, 3, 4)]
    assert read(store, 0, 3) == block(3)
    assert read(store, 5, 2) == block(2)


@pytest.mark.parametrize("seed", range(5))
def test_killed_while_writing(path: Path, seed: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        time.sleep(random.Random(seed).uniform(0, 0.05))
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
    store = NumberedStore(path, 4, 1 << 20, "killed")
    records = held(store)
    assert len(records) >= 3, "at most the slot being written may be lost"
    for key, _, slot in records:
        assert read(store, slot, key) == random.Random(key).randbytes(1 << 12) * 256


def test_a_block_torn_by_a_machine_crash_is_not_delivered(path: Path) -> None:
    """The kernel may have written the record back and not all of the bytes."""
    store = make(path)
    store.write(2, 5, None, block(5))
    store.write(6, 6, 5, block(6))
    store.close()
    overwrite(path, block(5)[1000:], bytes(BYTES - 1000))
    store = make(path)
    with pytest.raises(AuditError, match=r"slot 2"):
        store.check()
    with pytest.raises(CacheCorrupt, match=rf"slot 2 of {path} .*computed again.*delete the file"):
        read(store, 2, 5)
    assert read(store, 6, 6) == block(6)
    store.drop(2)
    with pytest.raises(CacheCorrupt, match=r"holds no block"):
        read(store, 2, 5)
    assert held(store) == [(6, 5, 6)]


def test_what_is_damaged_is_found_when_it_is_read_and_harms_nothing_else(path: Path) -> None:
    store = make(path)
    for slot, key in enumerate((5, 6, 7)):
        store.write(slot, key, None, block(key))
    overwrite(path, block(5)[1000:], bytes(BYTES - 1000))
    overwrite(path, block(6)[:10], bytes(10))
    for slot, key in enumerate((5, 6)):
        with pytest.raises(CacheCorrupt, match=r"do not match their checksum"):
            read(store, slot, key)
    store.write(1, 8, None, block(8))
    assert (read(store, 1, 8), read(store, 2, 7)) == (block(8), block(7))


def test_a_file_that_is_cut_off_under_us_is_an_error_of_the_disk_and_not_a_signal(path: Path) -> None:
    store = make(path)
    for slot in range(SLOTS):
        store.write(slot, slot, None, block(slot))
    whole = path.stat().st_size
    for size in (whole - 1, whole - BYTES, 5000, 4096 + 64 * 7 + 10, 0):
        os.truncate(path, size)
        with pytest.raises(OSError, match=r"cut off"):
            read(store, 7, 7)
    store.write(7, 9, None, block(9))
    assert read(store, 7, 9) == block(9)


@pytest.mark.parametrize("byte", range(64))
def test_a_torn_record_is_no_record(path: Path, byte: int) -> None:
    store = make(path)
    store.write(0, 5, None, block(5))
    store.close()
    with path.open("r+b") as file:
        file.seek(4096 + byte)
        (old,) = file.read(1)
        file.seek(4096 + byte)
        file.write(bytes([old ^ 1]))
    assert held(make(path)) == []


def test_a_record_does_not_vouch_for_another_slot(path: Path) -> None:
    store = make(path)
    store.write(0, 5, None, block(5))
    store.close()
    content = bytearray(path.read_bytes())
    content[4096 + 64 : 4096 + 128] = content[4096 : 4096 + 64]
    path.write_bytes(content)
    assert held(make(path)) == [(5, None, 0)]


def test_another_key_is_refused(path: Path) -> None:
    store = make(path)
    store.write(0, 5, None, block(5))
    with pytest.raises(
        CacheCorrupt, match=rf"holds block {key_of(5).hex()} where block {key_of(6).hex()} was"
    ):
        read(store, 0, 6)


def older(content: bytes) -> bytes:
    """The file as version 1 began."""
    return content[:8] + (1).to_bytes(4, "little") + content[12:]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "other model"}, f"made for {SLOTS} blocks .*{PRINT}.* needs .*'other model'"),
        ({"slots": SLOTS + 1}, f"needs {SLOTS + 1} blocks"),
        ({"slots": SLOTS - 1}, f"needs {SLOTS - 1} blocks"),
        ({"block_bytes": BYTES * 2}, f"of {BYTES * 2} bytes"),
        ({"origin_bytes": 40}, "needs 8 blocks"),
        ({"before": older}, "another version"),
        ({"before": lambda content: content[:3000]}, "another version, or is damaged"),
        ({"before": lambda content: content[:5]}, "another version, or is damaged"),
        ({"before": lambda content: content[:100] + b"?" + content[101:]}, "another version, or is damaged"),
    ],
)
def test_a_file_made_for_something_else_begins_anew_and_says_so(
    path: Path, change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = make(path)
    store.write(0, 5, None, block(5))
    store.close()
    before = change.pop("before", lambda content: content)
    path.write_bytes(before(path.read_bytes()))
    store = make(path, **change)
    assert held(store) == []
    (told,) = caplog.messages
    assert re.search(f"{path} begins anew: it was {said}|{path} begins anew: .*{said}", told)
    store.write(1, 7, None, random.Random(7).randbytes(store.block_bytes))
    store.close()
    caplog.clear()
    assert held(make(path, **change)) == [(7, None, 1)]
    assert caplog.messages == []


@pytest.mark.parametrize("content", [b"someone's notes", b"x" * 100_000, b"Wave"[::-1]])
def test_a_foreign_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"disk_path: .*is not a disk cache; delete the file"):
        make(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("size", [4096, 4096 + 100, 4096 + 64 * 6, 8192, 8192 + 2 * BYTES + 100, -1])
def test_a_file_that_was_cut_off_keeps_what_is_left(
    path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the middle of a record, or of a block."""
    store = make(path)
    for slot in range(SLOTS):
        store.write(slot, slot + 1, None, block(slot + 1))
    store.close()
    whole = path.stat().st_size
    os.truncate(path, size if size > 0 else whole + size)
    store = make(path)
    assert path.stat().st_size == whole
    assert len([told for told in caplog.messages if "is computed again" in told]) == 1
    good = 0
    for key, _, slot in held(store):
        with contextlib.suppress(CacheCorrupt):
            assert read(store, slot, key) == block(key)
            good += 1
    assert good == (2 if size > 8192 else 7 if size < 0 else 0)
    store.write(7, 9, None, block(9))
    assert read(store, 7, 9) == block(9)


def test_what_its_owner_keeps_beside_a_block_survives_as_well(path: Path) -> None:
    store = make(path, origin_bytes=10)
    for slot, origin in enumerate((b"", b"short", b"just right")):
        store.write(slot, slot, None, block(slot), origin)
    with pytest.raises(ValueError, match=r"origin has 11 bytes, a record takes 10"):
        store.write(2, 9, None, block(9), b"bit longer!")
    store.close()
    store = make(path, origin_bytes=10)
    assert [(each.key, each.origin) for each in store.records()] == [
        (0, b""),
        (1, b"short"),
        (2, b"just right"),
    ]


def test_nobody_else_may_read_what_tenants_asked(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rank0.blocks"
    make(path).close()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_file_that_somebody_else_put_there_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner could read all KV and write some under the keys in it; behind a link, another file would be lost."""
    make(path).close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(
            ConfigError, match=r"disk_path: .* is not a file of this user, .*; delete it, or give"
        ):
            make(path)
    for put in (lambda: path.symlink_to(path.with_name("victim")), lambda: os.mkfifo(path)):
        path.unlink()
        put()
        with pytest.raises(ConfigError, match="disk_path"):
            make(path)
    assert not path.with_name("victim").exists()


def test_what_others_may_read_they_may_not_any_more(path: Path) -> None:
    make(path).close()
    path.chmod(0o666)
    make(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_killed_before_the_header_was_written(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(bytes(9000))
    store = make(path)
    store.write(SLOTS - 1, 5, None, block(5))
    assert read(store, SLOTS - 1, 5) == block(5)


def test_two_openers(path: Path) -> None:
    store = make(path)
    with pytest.raises(ConfigError, match=r"disk_path: .*in use by another process"):
        make(path)
    store.write(0, 5, None, block(5))
    store.close()
    assert held(make(path)) == [(5, None, 0)]


def test_a_disk_that_is_too_small(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"disk_path: .*bytes are needed, .* lower disk_kv_tokens"):
        make(path, slots=1000, block_bytes=1 << 50)
    make(path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_room_that_is_gone_when_it_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ConfigError, match=f"disk_path: .*{os.strerror(code)}; lower disk_kv_tokens"):
            make(path)
    assert path.stat().st_size == 0
    make(path)


def test_places_no_file_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file" / "rank0.blocks", tmp_path):
        with pytest.raises(ConfigError, match=r"disk_path: cannot use .*create files in"):
            make(bad)

    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ConfigError, match=r"disk_path: cannot use .*: Permission denied; give"):
        make(tmp_path / "rank0.blocks")


def test_wrong_slots_and_sizes(path: Path) -> None:
    store = make(path)
    for slot in (-1, SLOTS):
        with pytest.raises(ValueError, match=r"does not exist"):
            store.write(slot, 1, None, block(1))
    with pytest.raises(ValueError, match=r"4999 bytes"):
        store.write(0, 1, None, block(1)[1:])
    with pytest.raises(ValueError, match=r"0 slots"):
        make(path, slots=0)
    with pytest.raises(ValueError, match=r"the header page takes"):
        make(path, fingerprint="x" * 5000)
