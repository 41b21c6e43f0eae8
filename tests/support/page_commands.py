"""The commands that a page of Markdown tells its reader to type."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENDS = frozenset({"\n", "|", "||", "&&", "&", ";"})
"""What stands between two commands of a shell."""


@dataclass(frozen=True)
class Command:
    """One command, its program's name without a directory; ``variables`` are those set for it."""

    page: str
    words: tuple[str, ...]
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def pages() -> list[str]:
    """README, CONTRIBUTING and everything under ``docs/``, relative to the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in found]


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[Command]:
    """All commands in the ``bash`` blocks of a page; assignments of what another command prints are left out."""
    return [command for block in blocks(page, "bash") for command in _split(page, block)]


def _split(page: str, block: str) -> list[Command]:
    block = re.sub(r"(^|\s)#\s.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(block, posix=True, punctuation_chars="\n|&;")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t", "", True
    found: list[Command] = []
    words: list[str] = []
    for word in [*lexer, "\n"]:
        if set(word) <= set("\n|&;"):
            found += _command(page, words)
            words = []
        else:
            words.append(word)
    return found


def _command(page: str, words: list[str]) -> list[Command]:
    variables: list[str] = []
    while words and re.match(r"\w+=", words[0]):
        if "$(" in words[0]:
            return []
        variables.append(words.pop(0))
    if ">" in words:
        words = words[: words.index(">")]
    return [Command(page, (Path(words[0]).name, *words[1:]), tuple(variables))] if words else []
