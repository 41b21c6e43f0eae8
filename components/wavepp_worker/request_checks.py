"""Checks of a request that every way in makes: its prompt, its salt, and that something is left to choose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from wavepp_worker import token_ids
from wavepp_worker.errors import InvalidRequest

MOST_SALT_BYTES = 1024
"""UTF-8 bytes of a salt, or of an adapter's name. Both are kept and told to the router for as long as a block of the
request is cached: a pool of short prompts under long ones would need many times its own memory."""

MOST_BANNED = 1024
"""Tokens that a request bans. They are gone through for each of its tokens, while all others wait."""


def check_prompt(tokens: bytes, max_model_len: int, vocab_size: int) -> None:
    """Refuse a prompt that a worker cannot run.

    Args:
        tokens: packed token ids, see ``token_ids``.
        max_model_len: most tokens of a prompt.
        vocab_size: token ids are below it.

    Raises:
        InvalidRequest: empty, cut off, too long, or an id outside the vocabulary.
    """
    if len(tokens) % token_ids.BYTES:
        raise InvalidRequest(f"the prompt is cut off; give {token_ids.BYTES} bytes for each token id")
    ids = token_ids.unpack(tokens)
    if len(ids) == 0:
        raise InvalidRequest("the prompt is empty; give at least one token")
    if len(ids) > max_model_len:
        raise InvalidRequest(
            f"the prompt has {len(ids)} tokens, this worker accepts at most {max_model_len}; shorten it"
        )
    highest = int(ids.max())
    if highest >= vocab_size:
        raise InvalidRequest(outside_vocabulary(highest, vocab_size))


def check_salt(text: str, name: str = "cache_salt") -> None:
    """Refuse a salt that is too long to be kept beside every block.

    Args:
        text: the salt, or an adapter's name.
        name: what it is called in the request.

    Raises:
        InvalidRequest: it has more than ``MOST_SALT_BYTES``.
    """
    # A code point that stands alone has no UTF-8; others refuse it.
    count = len(text.encode(errors="surrogatepass"))
    if count > MOST_SALT_BYTES:
        raise InvalidRequest(
            f"{name} has {count} bytes, this deployment takes at most {MOST_SALT_BYTES}; give a hash of it"
        )


def check_lora(name: str, known: Collection[str]) -> None:
    """Refuse an adapter that is not loaded.

    Args:
        name: of the adapter; empty for none.

    Raises:
        InvalidRequest: it is none of ``known``.
    """
    if name and name not in known:
        there = f"those that are: {', '.join(sorted(known))}" if known else "none is (lora_modules)"
        raise InvalidRequest(f"LoRA adapter {name!r} is not loaded; {there}, or use the base model's name")


def check_banned(banned: Collection[int], vocab_size: int) -> None:
    """Refuse a request that bans too many tokens, or leaves none to choose.

    Args:
        banned: token ids that must not be chosen; those outside the vocabulary leave as many to choose.

    Raises:
        InvalidRequest: they are more than ``MOST_BANNED``, or all there are.
    """
    if len(banned) > MOST_BANNED:
        raise InvalidRequest(
            f"{len(banned)} tokens are banned, this deployment takes at most {MOST_BANNED}; ask for min_tokens=0 or "
            "fewer stop tokens, or say which tokens are allowed instead"
        )
    if (
        len(banned) >= vocab_size
        and len({token for token in banned if 0 <= token < vocab_size}) == vocab_size
    ):
        raise InvalidRequest(
            f"all {vocab_size} tokens of the vocabulary are banned, which leaves none to generate; ask for "
            "min_tokens=0 or fewer stop tokens"
        )


def check_biased(biases: Iterable[tuple[int, float]], vocab_size: int | None) -> None:
    """Refuse a bias of a token that the model does not have.

    Args:
        biases: ``(token id, bias)``.
        vocab_size: token ids are below it; None if unknown.

    Raises:
        InvalidRequest: there is one.
    """
    for token, _ in biases:
        if vocab_size is not None and not 0 <= token < vocab_size:
            raise InvalidRequest(f"logit_bias: {outside_vocabulary(token, vocab_size)}")


def check_allowed(allowed: bytes, banned: Collection[int], vocab_size: int) -> None:
    """Refuse a mask that is of another vocabulary, or leaves no token to begin with.

    Args:
        allowed: a bit for each token that may be chosen, that of token 0 lowest; empty for all.
        banned: token ids that must not be chosen all the same.
        vocab_size: token ids are below it.

    Raises:
        InvalidRequest: it has bits for fewer tokens, or of none that is not banned.
    """
    if not allowed:
        return
    if 8 * len(allowed) < vocab_size:
        raise InvalidRequest(
            f"allowed has bits for {8 * len(allowed)} tokens, but the vocabulary has {vocab_size}; give one for each"
        )
    bits = np.unpackbits(np.frombuffer(allowed, np.uint8), count=vocab_size, bitorder="little")
    bits[[token for token in banned if 0 <= token < vocab_size]] = 0
    if not bits.any():
        raise InvalidRequest(
            "no token is left to begin an answer with: those that what it must match begins with are all banned; ask "
            "for min_tokens=0, fewer stop tokens or a wider schema"
        )


def are_ids(ids: object, vocab_size: int) -> bool:
    """Whether this is a list of token ids of this vocabulary, and of nothing else."""
    # Millions of ids, nearly always good ones, would hold up everybody else if they were looked at one by one.
    try:
        msgspec.convert(ids, list[Annotated[int, Meta(ge=0, lt=vocab_size)]])
    except msgspec.ValidationError:
        return False
    return True


def first_outside(ids: Sequence[object], vocab_size: int) -> int | None:
    """The first integer that is no token id of this vocabulary; what is no integer is passed over."""
    return next((token for token in ids if isinstance(token, int) and not 0 <= token < vocab_size), None)


def outside_vocabulary(token: int, vocab_size: int) -> str:
    """The sentence for a token id that the model does not have."""
    return f"token id {token} is outside the vocabulary of {vocab_size} tokens; ids are 0 to {vocab_size - 1}"
