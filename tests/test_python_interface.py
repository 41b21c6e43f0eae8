"""What users import: that it is all of it, that it is lazy, and that docs/python.md is true."""

from __future__ import annotations

import contextlib
import doctest
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wavepp_worker
from wavepp_worker import errors
from wavepp_worker.dynamo.prefill_handler import PrefillHandler
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.names import QueueName

from tests.support.nats_servers import NatsServer

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
INTERNAL_ERRORS = {
    "PositionMismatch",
    "CacheCorrupt",
    "StepTimeout",
    "PlaneUnreached",
    "WorkerPaused",
    "WorkerStarting",
    "HandoffMismatch",
    "JobTooLarge",
}
"""Errors that no caller sees: they end a rank or a worker, but for ``CacheCorrupt``, by which only a copy is lost,
``WorkerPaused`` and ``WorkerStarting``, which are a Dynamo worker's, ``HandoffMismatch``, which a decode worker's
callers are not, and ``JobTooLarge``, which is an ``InvalidRequest`` to senders."""


def examples(page: str) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the line it begins at."""
    found = re.finditer(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [(page.count("\n", 0, match.start(1)), match[1]) for match in found]


def run_docstrings(engine: object) -> None:
    """The examples in the docstrings of all public names; ``engine`` is what they call so."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    found = 0
    for name in wavepp_worker.__all__:
        public = getattr(wavepp_worker, name)
        members = {f"{name}.{key}": getattr(value, "__func__", value) for key, value in vars(public).items()}
        for path, each in {name: public, **members}.items():
            names = {key: getattr(wavepp_worker, key) for key in wavepp_worker.__all__} | {"engine": engine}
            test = parser.get_doctest(getattr(each, "__doc__", None) or "", names, path, None, None)
            found += len(test.examples)
            told: list[str] = []
            assert runner.run(test, out=told.append).failed == 0, "".join(told)
    assert found >= 10


@contextlib.contextmanager
def jobs_taken(engine: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A NATS server, and a prefill worker's intake that runs jobs of ``MODEL`` on an engine."""
    server = NatsServer(store)
    server.start()
    monkeypatch.setenv("NATS_SERVER", server.url)
    handler = PrefillHandler(engine.config, bootstrap_port=0, on_index=lambda delta: None, on_death=print)
    handler.engine = engine
    intake = Intake(handler, IntakeConfig(intake="nats"), QueueName("dynamo", "MODEL"))
    intake.start("docs")
    try:
        yield
    finally:
        intake.close()
        server.close()


def test_every_example_of_the_page_and_of_docstrings_runs(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = examples(PAGE)
    assert len(blocks) == PAGE.count("```python") >= 10
    names: dict[str, object] = {"__name__": "example"}
    for line, block in blocks:
        if "engine.close()" in block:
            run_docstrings(names["engine"])
        # So many empty lines in front that a traceback names the page's line.
        code = "\n" * line + block.replace('"DIR"', repr(str(tiny_llama)))
        taken = (
            jobs_taken(names["engine"], tmp_path, monkeypatch)
            if "PrefillQueue(" in block
            else contextlib.nullcontext()
        )
        with taken:
            exec(compile(code, "docs/python.md", "exec"), names)
    assert not names["engine"].alive  # type: ignore[attr-defined]


def test_the_readmes_example_runs(tiny_llama: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = examples(readme)
    assert blocks
    for line, block in blocks:
        code = "\n" * line + block.replace('"DIR"', repr(str(tiny_llama)))
        exec(compile(code, "README.md", "exec"), {})


def test_every_public_name_has_an_example() -> None:
    imported = set(
        re.findall(r"\w+", " ".join(re.findall(r"^from wavepp_worker import (.*)$", PAGE, re.MULTILINE)))
    )
    assert imported == set(wavepp_worker.__all__)


def test_nothing_else_is_public() -> None:
    assert dir(wavepp_worker) == sorted(wavepp_worker.__all__)
    everything: dict[str, object] = {}
    exec("from wavepp_worker import *", everything)
    assert everything.keys() - {"__builtins__"} == set(wavepp_worker.__all__)
    for name in ("RankConfig", "WaveCost", "PositionMismatch", "CacheCorrupt"):
        with pytest.raises(AttributeError, match=f"'wavepp_worker' has no attribute '{name}'"):
            getattr(wavepp_worker, name)


def test_every_error_that_a_caller_meets_is_public() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.WaveppError)
    }
    assert raised - INTERNAL_ERRORS == {name for name in wavepp_worker.__all__ if name in vars(errors)}
    assert raised >= INTERNAL_ERRORS


def test_the_lazy_names_are_those_that_type_checkers_see() -> None:
    source = Path(wavepp_worker.__file__).read_text(encoding="utf-8")
    seen = re.search(r"if TYPE_CHECKING:\n(.*?)\n\n__all__", source, re.DOTALL)
    assert seen is not None
    typed: dict[str, object] = {}
    exec(re.sub("^    ", "", seen[1], flags=re.MULTILINE), typed)
    del typed["__builtins__"]
    assert typed == {name: getattr(wavepp_worker, name) for name in wavepp_worker.__all__}


def test_the_configuration_and_the_errors_load_no_tensor_library() -> None:
    code = (
        "import sys; from wavepp_worker import EngineConfig, InvalidRequest; EngineConfig(model='/m'); "
        "print([name for name in ('torch', 'transformers', 'zmq') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
