"""Prompt lines: what each holds, whether there are files or streams."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError, InvalidRequest
from wavepp_worker.runtime.client.prompt_lines import open_prompts, parse_lines, read_prompt


def test_ids_text_and_what_is_wrong_with_a_line() -> None:
    lines = [
        b'{"id": "a", "token_ids": [1, 2]}\n',
        b"  \n",
        b'{"id": 2, "text": "hello"}\r\n',
        b'{"id": null, "token_ids": [1], "text": null}',
        b'{"id": 2, "text": "ids may be equal"}',
    ]
    parsed = list(parse_lines(lines, "p", read_prompt))
    assert [(line.id, line.prompt) for line in parsed] == [
        ("a", [1, 2]),
        (2, "hello"),
        (None, [1]),
        (2, "ids may be equal"),
    ]
    assert sum(line.size for line in parsed) == sum(map(len, lines)) - 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"not json", "line 1 of p is not a JSON object with an id"),
        (b"[1]", "line 1 of p is not a JSON object with an id"),
        (b'{"token_ids": [1]}', "line 1 of p is not a JSON object with an id"),
        (b"\xff\xfe\xfd", "line 1 of p is not a JSON object with an id"),
        (b"[" * 100_000, "line 1 of p is not a JSON object with an id"),
        (b'{"id": 1, "token_ids": "1 2"}', "a prompt needs token_ids"),
        (b'{"id": 1, "text": ["a"]}', "a prompt needs token_ids"),
        (b'{"id": 1}', "a prompt needs token_ids"),
        (b'{"id": 1, "text": "a", "token_ids": [1]}', "this one has both"),
        (b'{"id": 1, "text": "a", "salt": "b"}', 'a prompt has no key "salt"'),
    ],
)
def test_a_bad_line_is_a_sentence(line: bytes, complaint: str) -> None:
    (parsed,) = parse_lines([line], "p", read_prompt)
    assert isinstance(parsed.prompt, InvalidRequest)
    assert complaint in str(parsed.prompt)


def test_of_a_file_it_is_known_how_much_there_is(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"id": 1, "token_ids": [1]}\n\n{"id": 2, "token_ids": [1]}')
    with open_prompts(file, read_prompt) as source:
        assert (source.prompts, source.size) == (2, 28 + 27)
        assert [line.id for line in source.lines] == [1, 2]


def test_of_a_pipe_lines_come_as_they_are_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    with open_prompts(pipe, read_prompt) as source:
        assert (source.prompts, source.size) == (None, None)
        for number in range(3):
            os.write(writer, b'{"id": %d, "token_ids": [1]}\n' % number)
            assert next(source.lines).id == number
    os.close(writer)


def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=f"^prompts is {path}, which cannot be read: {why}"):
            open_prompts(path, read_prompt).__enter__()
