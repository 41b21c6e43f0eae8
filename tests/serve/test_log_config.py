from __future__ import annotations

import sys
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import FRONTEND
from wavepp_worker.serve.log_config import VARIABLE, check_log_config
from wavepp_worker.serve.parsers import parser_of


def test_what_dynamo_reads_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "levels.toml"
    file.write_text('log_level = "warn"\n[log_filters]\n"dynamo_llm::kv_router" = "debug"\n')
    check_log_config({VARIABLE: str(file)})
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    check_log_config({VARIABLE: "levels.toml"})
    check_log_config({VARIABLE: ""})
    check_log_config({})


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{VARIABLE}: there is no file {tmp_path}/gone; "):
        check_log_config({VARIABLE: f"{tmp_path}/gone"})


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no reader of TOML")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('log_level = "warn', "cannot be read as TOML"),
        ("log_level = 5", "should be a text"),
        ("log_filters = 5", "should be a table of texts"),
        ("[log_filters]\nx = 5", "should be a table of texts"),
    ],
)
def test_what_dynamo_would_panic_at_is_refused_before_it_is_imported(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "levels.toml"
    file.write_text(text)
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(ConfigError, match=f"^{VARIABLE}: .*{sentence}"):
        parser_of(FRONTEND)
