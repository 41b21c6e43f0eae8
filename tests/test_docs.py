"""docs/design.md and CONTRIBUTING.md speak of what is there: paths, names, tests, imports, promises, scenarios."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "components" / "wavepp_worker"
DESIGN = ROOT / "docs" / "design.md"
PAGES = {str(page.relative_to(ROOT)): page for page in (DESIGN, ROOT / "CONTRIBUTING.md")}
CODE = ("components", "bench", "tests", "graphs")

EXAMPLE = re.compile(r"\b(?:NAME|SEED|OLD|NEW)\b")
"""Stands for what the reader puts there."""
TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
SCENARIO = re.compile(r"(?<![A-Za-z0-9])[Ss](\d\d)(?!\d)(?: to S(\d\d))?")
PROMISES = re.compile(r"[Pp]romises?[ _](\d+(?:(?:,| to| and|, and) \d+)*)")


def python_files() -> Iterator[Path]:
    """All but this file: what it names in vain must not count as there."""
    for folder in CODE:
        yield from (file for file in (ROOT / folder).rglob("*.py") if file != Path(__file__))


@cache
def sources() -> dict[Path, str]:
    return {file: file.read_text() for file in python_files()}


@cache
def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(text) for file, text in sources().items()}


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def functions() -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, kinds)}


@cache
def module_names() -> set[str]:
    """What is assigned at the top of some module: constants, and names of types."""
    statements = [node for tree in trees().values() for node in tree.body]
    plain = [name for node in statements if isinstance(node, ast.Assign) for name in node.targets]
    typed = [node.target for node in statements if isinstance(node, ast.AnnAssign)]
    return {name.id for target in (*plain, *typed) for name in ast.walk(target) if isinstance(name, ast.Name)}


@cache
def words() -> set[str]:
    return {word for text in sources().values() for word in re.findall(r"\w+", text)}


def members(name: str) -> set[str]:
    """Names that classes of this name, or those they derive from, define or set on ``self``."""
    found: set[str] = set()
    for node in classes().get(name, []):
        for each in ast.walk(node):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(each.name)
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                found.add(each.target.id)
            elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                found.add(each.attr)
        for base in node.bases:
            if isinstance(base, ast.Name):
                found |= members(base.id)
    return found


def path_exists(path: str) -> bool:
    path = path.replace("W/", "components/wavepp_worker/", 1) if path.startswith("W/") else path
    return any(next(root.glob(path.rstrip("/")), None) is not None for root in (ROOT, PACKAGE))


def problem_with(span: str) -> str | None:
    """What is wrong with what stands between backticks; None if nothing is, or if it names nothing of ours."""
    if EXAMPLE.search(span):
        return None
    if test := TEST.fullmatch(span):
        file = ROOT / test[1]
        return None if file.exists() and f"def {test[2]}(" in file.read_text() else "no such test"
    if re.fullmatch(r"[\w.*-]*(/[\w.*-]+)+/?|[\w-]+/|[\w-]+\.(py|md|yaml|toml|json)", span):
        return None if path_exists(span) or span == "timed.json" else "no such file"
    if command := re.search(r"(?:python -m |^)((?:bench|tests|graphs|wavepp_worker)(?:\.\w+)+)", span):
        return None if importlib.util.find_spec(command[1]) else "no such module"
    if member := re.fullmatch(r"([A-Z]\w*[a-z]\w*)\.(\w+)", span):
        return None if member[2] in members(member[1]) else "no such member"
    if re.fullmatch(r"[A-Z]+[a-z]\w*", span):
        return None if span in classes() or span in module_names() else "no such class"
    if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|[A-Z]{5,}", span):
        return None if span in module_names() else "no such constant"
    if function := re.fullmatch(r"(\w+)\(\)", span):
        return None if function[1] in functions() else "no such function"
    if re.fullmatch(r"_[a-z]+|_?[a-z]+(_[a-z]+)+", span):
        return None if span in words() else "a word that the code does not have"
    return None


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    text = PAGES[page].read_text()
    spans = re.findall(r"`([^`\n]+)`", prose(text))
    for block in code_blocks(text, "mermaid"):
        spans += re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", block)
    for block in code_blocks(text, "bash"):
        spans += [line for line in block.splitlines() if "python -m" in line]
        spans += re.findall(r"\b(?:tests|bench|docs|graphs|configs)/[\w/.]+", block)
    assert len(spans) > 20
    problems = {span: problem for span in spans if (problem := problem_with(span)) is not None}
    assert problems == {}, f"{page} speaks of what is not there"


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES[page].read_text()):
        assert link.startswith("https://") or (PAGES[page].parent / link).exists(), link


@pytest.mark.parametrize(
    "span",
    [
        "runtime/rank/leader.py",
        "tests/test_docs.py::test_that_is_not_there",
        "LeaderWav",
        "LeaderWave.spin",
        "WAIT_MINUTES",
        "decided()",
        "max_num_batched_crumbs",
        "python -m tests.simulator.nothing",
    ],
)
def test_what_does_not_exist_is_found(span: str) -> None:
    assert problem_with(span) is not None


def drawn_arrows() -> dict[str, set[str]]:
    """What each package of the map may import at once; dotted arrows are no imports."""
    [drawing] = [block for block in code_blocks(DESIGN.read_text(), "mermaid") if "flowchart" in block]
    arrows: dict[str, set[str]] = {}
    for line in drawing.splitlines():
        if arrow := re.fullmatch(r"\s*(\w+) --> ([\w &]+)", line):
            arrows.setdefault(arrow[1], set()).update(arrow[2].split(" & "))
    return arrows


def package_of(module: str) -> str | None:
    """The name in the map of the package that a module is in; None for what lies below all packages."""
    parts = module.split(".")[1:]
    inner = parts[1:] if parts[:1] == ["runtime"] else parts
    return inner[0] if inner and (PACKAGE / Path(*parts[: len(parts) - len(inner) + 1])).is_dir() else None


def test_imports_follow_the_map() -> None:
    arrows = drawn_arrows()
    names = set(arrows).union(*arrows.values())
    reachable: dict[str, set[str]] = {}

    def reach(name: str, above: tuple[str, ...] = ()) -> set[str]:
        assert name not in above, f"a circle: {above} and {name} again"
        if name not in reachable:
            below = arrows.get(name, set())
            reachable[name] = below.union(*(reach(each, (*above, name)) for each in below))
        return reachable[name]

    against = []
    for file, tree in trees().items():
        if not file.is_relative_to(PACKAGE):
            continue
        own = package_of(".".join(("wavepp_worker", *file.relative_to(PACKAGE).with_suffix("").parts)))
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            top = node.module.split(".")[0]
            if top in ("bench", "tests") or (top == "dynamo" and own != "dynamo"):
                against.append((str(file.relative_to(PACKAGE)), node.module))
            other = package_of(node.module) if top == "wavepp_worker" else None
            if own is None or other is None or own == other:
                continue
            assert {own, other} <= names, f"the map lacks {own} or {other}"
            if other not in reach(own):
                against.append((str(file.relative_to(PACKAGE)), node.module))
    assert against == []


def numbers(matches: Iterator[re.Match[str]]) -> set[int]:
    """The numbers that scenario ids name, ranges included."""
    found: set[int] = set()
    for match in matches:
        first = int(match[1])
        found.update(range(first, int(match[2] or first) + 1))
    return found


def promise_numbers(text: str) -> set[int]:
    found: set[int] = set()
    for match in PROMISES.finditer(text):
        named = re.sub(
            r"(\d+) to (\d+)", lambda m: ",".join(map(str, range(int(m[1]), int(m[2]) + 1))), match[1]
        )
        found.update(map(int, re.findall(r"\d+", named)))
    return found


def documented(section: str, label: str) -> dict[int, str]:
    """The rows of a numbered table of the design."""
    part = DESIGN.read_text().split(f"## {section}")[1].split("\n## ")[0]
    return {
        int(row[1]): row[2] for row in re.finditer(rf"^\| {label}(\d+) \|(.*)$", part, flags=re.MULTILINE)
    }


def test_the_promises_are_twenty_and_each_names_its_tests() -> None:
    rows = documented("12. Promises", "")
    assert list(rows) == list(range(1, 21))
    for number, row in rows.items():
        assert "tests/" in row or "not tested yet" in row or "not in use" in row, f"promise {number}"


def test_promises_that_code_and_tests_name_are_in_use() -> None:
    in_use = {number for number, row in documented("12. Promises", "").items() if "not in use" not in row}
    named = {str(file): promise_numbers(text) for file, text in sources().items()}
    assert {file: found - in_use for file, found in named.items() if found - in_use} == {}
    assert len(set().union(*named.values())) > 12


def test_scenarios_that_code_and_tests_name_are_listed_with_a_test_that_names_them() -> None:
    rows = documented("13. Scenarios", "S")
    named = {file: numbers(SCENARIO.finditer(text)) for file, text in sources().items()}
    everywhere = set().union(*named.values())
    assert everywhere - rows.keys() == set(), "named in code or tests, but not in docs/design.md"
    assert rows.keys() - everywhere == set(), "in docs/design.md, but nothing names them"
    for number, row in rows.items():
        files = [ROOT / path for path in re.findall(r"`((?:tests|bench)/[\w/]+\.py)", row)]
        assert files, f"S{number:02} has no test"
        assert all(number in named[file] for file in files), f"a file of S{number:02} does not name it"
