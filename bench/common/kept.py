"""Measured rows in a JSON file, each with the commit and the day it was measured at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.common.origin import Origin


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is kept.

    Attributes:
        commit: see ``Origin``; None where it was not recorded.
        date: the day; None where it was not recorded.
    """

    commit: str | None = None
    date: str | None = None


AnyKept = TypeVar("AnyKept", bound=Kept)


def with_origin(row: AnyKept, origin: Origin) -> AnyKept:
    """The row as measured at ``origin``."""
    return msgspec.structs.replace(row, commit=origin.commit, date=origin.date)


def origins(rows: Sequence[Kept]) -> str:
    """How many rows were measured at which commits, in a line."""
    counts = Counter(
        "an unrecorded commit" if row.date is None else str(Origin(row.commit, row.date)) for row in rows
    )
    return "; ".join(f"{count} at {origin}" for origin, count in counts.items()) or "none"


def read_kept(file: Path, kind: type[AnyKept]) -> list[AnyKept]:
    """The rows of a file that may not exist yet.

    Raises:
        msgspec.DecodeError: it holds something else.
    """
    return msgspec.json.decode(file.read_bytes(), type=list[kind]) if file.exists() else []  # type: ignore[valid-type]


def write_kept(file: Path, rows: Sequence[Kept]) -> None:
    """Keep the rows; a reader never sees half a file."""
    written = file.with_suffix(".part")
    written.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    written.replace(file)
