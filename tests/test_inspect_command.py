"""``wavepp inspect`` says in a table, or in JSON, what a configuration tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wavepp_worker.cli import app
from wavepp_worker.inspect_command import size, spans

from tests.support.model_files import edit_json


def test_a_model_is_shown_as_a_table_and_as_json(tiny_mla: Path) -> None:
    shown = CliRunner().invoke(app, ["inspect", str(tiny_mla), "--pp", "2", "--partition", "2,4"])
    assert shown.exit_code == 0
    for part in ("deepseek_v3", "latent", "experts", "2-5 (4)", "192 B", "384 B"):
        assert part in shown.output
    assert "parameters" in shown.output
    assert "…" not in shown.output, "80 columns are too few"
    said = CliRunner().invoke(app, ["inspect", str(tiny_mla), "--pp", "2", "--partition", "2,4", "--json"])
    assert [stage["cache_bytes"] for stage in json.loads(said.output)["stages"]] == [192, 384]


def test_what_cannot_run_and_what_cannot_be_read_have_codes_of_their_own(
    tmp_path: Path, tiny_mla: Path
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_mla / "config.json").read_bytes())
    edit_json(
        tmp_path / "config.json", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    )
    unsupported = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert unsupported.exit_code == 1
    assert "Not supported: Its rotary embedding (dynamic)" in unsupported.output
    refused = CliRunner().invoke(app, ["inspect", str(tmp_path), "--pp", "7"])
    assert refused.exit_code == 2
    assert "error: --pp: 7 stages" in refused.output
    assert CliRunner().invoke(app, ["inspect", str(tmp_path), "--partition", "a"]).exit_code == 2


@pytest.mark.parametrize(
    ("layers", "shown"), [((3,), "3 (1)"), ((0, 1, 2, 5), "0-2,5 (4)"), (range(2), "0-1 (2)")]
)
def test_layers_are_named_in_runs(layers: tuple[int, ...] | range, shown: str) -> None:
    assert spans(layers) == shown


@pytest.mark.parametrize(
    ("amount", "shown"), [(None, "?"), (96, "96 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_have_units(amount: int | None, shown: str) -> None:
    assert size(amount) == shown
