"""Result lines: there at once, whole or not at all."""

from __future__ import annotations

import os
import resource
from io import FileIO
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.runtime.client.result_lines import ResultLines, open_results


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("what was there before")
    with open_results(out, tmp_path / "prompts") as results:
        for number in range(3):
            results.write({"id": number})
            assert out.read_text() == "".join(f'{{"id": {each}}}\n' for each in range(number + 1))


def test_the_prompts_are_not_overwritten(tmp_path: Path) -> None:
    prompts, link = tmp_path / "prompts", tmp_path / "link"
    prompts.write_text("prompts")
    link.symlink_to(prompts)
    with pytest.raises(ConfigError, match="which it would overwrite"):
        open_results(link, prompts).__enter__()
    assert prompts.read_text() == "prompts"


def test_what_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^out is .*none/out, which cannot be written: No such file"):
        open_results(tmp_path / "none" / "out", tmp_path).__enter__()


def test_where_there_is_no_room_for_a_line_no_part_of_it_is_left(tmp_path: Path) -> None:
    """As on a full disk: the file may not grow beyond what one and a half lines take."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    out, line = tmp_path / "out", {"id": "x" * 100}
    with open_results(out, tmp_path / "prompts") as results:
        results.write(line)
        whole = out.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) * 3 // 2, before[1]))
        try:
            with pytest.raises(WaveppError, match=f"^results cannot be written to {out}: File too large"):
                results.write(line)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert out.read_bytes() == whole


def test_what_others_wrote_is_left_alone(tmp_path: Path) -> None:
    """Standard output may be a file that already has something, as with ``>>``."""
    out = tmp_path / "out"
    out.write_text("theirs")

    class Full(FileIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    with Full(out, "a") as file, pytest.raises(WaveppError, match="No space left"):
        ResultLines(file, "standard output", new=False).write({})
    assert out.read_text() == "theirs"


def test_a_reader_that_is_gone_is_told_apart() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with FileIO(writing, "w") as file, pytest.raises(BrokenPipeError):
        ResultLines(file, "standard output", new=False).write({})
