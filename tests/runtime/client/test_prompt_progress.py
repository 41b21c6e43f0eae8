"""What is shown of a file's progress, and where."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.client.prompt_lines import PromptSource
from wavepp_worker.runtime.client.prompt_progress import PromptProgress


def test_standard_error_has_the_count_and_the_rate_and_standard_output_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for total, count in ((40, "7 of 40"), (None, "7 ")):
        with PromptProgress(PromptSource(iter(()), total, total and 4000), shown=True) as progress:
            progress.begin()
            progress.show(700, 7, 12345.6)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"{count}" in shown.err
        assert "12,346 tokens/s" in shown.err


def test_it_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with PromptProgress(PromptSource(iter(()), 1, 1), shown=False) as progress:
        progress.begin()
        progress.show(1, 1, 1.0)
    assert capsys.readouterr() == ("", "")
