"""README.md says of just the models that the tests run that they are supported."""

from __future__ import annotations

from pathlib import Path

from tests.support.supported import table

README = Path(__file__).parent.parent / "README.md"


def test_the_table_of_supported_models_is_what_ran() -> None:
    begin = README.read_text().index("| `model_type` |")
    shown = README.read_text()[begin:].split("\n\n", 1)[0]
    assert shown == table(), "python -m tests.support.supported prints the table"
