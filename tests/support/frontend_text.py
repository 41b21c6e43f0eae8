"""What Dynamo's frontend makes of an answer without stop strings, as its detokeniser is written."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

CONTEXT_TOKENS = 5


def frontend_text(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    skip_special: bool = True,
    says_rest: bool = False,
) -> str | None:
    """The whole text; None where the frontend fails, as it cuts within a character.

    Args:
        says_rest: whether bytes that are no whole character are said at the end, as from Dynamo 1.6 on.
    """

    def decoded(start: int, end: int) -> bytes:
        return tokenizer.decode(ids[start:end], skip_special_tokens=skip_special).encode()

    ids = list(prompt)
    prefix, read = max(0, len(ids) - CONTEXT_TOKENS), len(ids)
    said = b""
    for token in answer:
        ids.append(token)
        before, now = decoded(prefix, read), decoded(prefix, len(ids))
        if len(now) > len(before) and not now.endswith("\N{REPLACEMENT CHARACTER}".encode()):
            new = now[len(before) :]
            if 0x80 <= new[0] < 0xC0:
                return None
            said += new
            prefix, read = read, len(ids)
    if says_rest:
        rest = decoded(prefix, len(ids))[len(decoded(prefix, read)) :]
        if rest and 0x80 <= rest[0] < 0xC0:
            return None
        said += rest
    return said.decode()
