"""One small wrong change of production code, and how many schedules it takes the simulator to notice."""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from tests.simulator.search import failure


@dataclass(frozen=True)
class Mutant:
    """A change that breaks a promise.

    Attributes:
        name: one word or a few.
        module: below ``wavepp_worker``.
        function: in the module, ``function`` or ``Class.method``; a property counts as its getter.
        before: what stands in its source exactly once.
        after: what stands there in the mutant.
        admission, ownership: of the worlds in which it matters.
        late: it takes hundreds of schedules, so only the command and ``make soak`` look for it.
    """

    name: str
    module: str
    function: str
    before: str
    after: str
    admission: str = "wave"
    ownership: str = "lease"
    late: bool = False

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run with the change, also for who imported the function before, and undo it.

        Raises:
            ValueError: the function does not hold ``before`` exactly once.
        """
        function = self._found()
        code = function.__code__
        function.__code__ = self._changed(function)
        try:
            yield
        finally:
            function.__code__ = code

    def caught(self, seeds: int, first: int = 0) -> tuple[int, str] | None:
        """The first seed whose schedule shows it, and how; None if none does."""
        with self.planted():
            return failure((first, seeds, None, self.admission, self.ownership))

    def _found(self) -> FunctionType:
        found: Any = importlib.import_module(f"wavepp_worker.{self.module}")
        for part in self.function.split("."):
            found = inspect.getattr_static(found, part)
        found = found.fget if isinstance(found, property) else found
        assert isinstance(found, FunctionType), f"{self.function} of {self.module} is {found}"
        return found

    def _changed(self, function: FunctionType) -> CodeType:
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.before) != 1:
            raise ValueError(
                f"{self.name}: {self.function} of {self.module} holds {self.before!r} {source.count(self.before)} "
                "times, not once; change the mutant with the code"
            )
        source = source.replace(self.before, self.after)
        # In a class, as ``super()`` needs one; only the code of the method is used of it.
        whole = compile(
            f"class _:\n{textwrap.indent(source, ' ')}",
            f"<mutant {self.name}>",
            "exec",
            __future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        changed = _code_named(function.__name__, whole)
        if changed.co_freevars != function.__code__.co_freevars:
            raise ValueError(
                f"{self.name} uses super() where {self.function} does not, or the other way round"
            )
        return changed


def _code_named(name: str, code: CodeType) -> CodeType:
    """The code of a function of the only class in a module's code."""
    body = next(each for each in code.co_consts if isinstance(each, CodeType))
    return next(each for each in body.co_consts if isinstance(each, CodeType) and each.co_name == name)
