"""What a command prints, where that may be impossible: its disk is full, or its terminal gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


def printable(text: str) -> str:
    """With ``?`` for what a terminal would obey, or cannot show."""
    return "".join(char if char.isprintable() else "?" for char in text)


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints and flushes, as typer and rich do: have a command that cannot print say so, in a sentence.

    Raises:
        Exit: with 1, standard output cannot be written.
        BrokenPipeError: its reader has gone, which wants to hear of nothing; typer ends the command.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        typer.secho(
            f"error: standard output cannot be written: {error.strerror}; make room there, or send it elsewhere",
            fg="red",
            err=True,
        )
        # What is left of it would be tried once more, and complained of, when the interpreter ends.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise typer.Exit(1) from error
