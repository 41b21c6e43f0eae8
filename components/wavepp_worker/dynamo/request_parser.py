"""From Dynamo's ``GenerateRequest`` to what our engines take; refuses what we cannot honour. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavepp_worker import token_ids
from wavepp_worker.dynamo.carried_fields import carried_options
from wavepp_worker.dynamo.guided_options import read_guided_decoding
from wavepp_worker.dynamo.option_groups import read_option_groups
from wavepp_worker.dynamo.sampling_options import sampling_params
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.sampling_params import SamplingParams, check_sampling
from wavepp_worker.request_checks import check_banned, check_biased, check_lora, check_prompt, check_salt

if TYPE_CHECKING:
    from dynamo.common.backend.engine import GenerateRequest


@dataclass(frozen=True)
class RequestLimits:
    """What a request is measured against.

    Attributes:
        max_model_len: most tokens of prompt and answer together.
        vocab_size: token ids are below it.
        top_logprobs: most alternatives a request may ask for.
        adapters: names of the LoRA adapters that requests may choose.
    """

    max_model_len: int
    vocab_size: int
    top_logprobs: int
    adapters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ParsedRequest:
    """A request as the frontend sent it, checked and in our words.

    Attributes:
        tokens: the prompt, packed as ``token_ids`` says.
        salt: the cache isolation key.
        lora: name of the LoRA adapter that it goes through; empty for none.
        priority: who has a higher one is admitted first (the frontend's ``nvext.agent_hints.priority``).
        sampling: how tokens are chosen.
        max_tokens: most tokens to generate: at least 1, at most what the context leaves.
        min_tokens: tokens before which nothing ends the answer.
        stop_hidden: token ids that end the answer and whose text is not shown.
        stop_visible: token ids that end the answer and whose text is shown.
        stop_strings: texts that end the answer.
        keep_stop_string: whether the stop text itself is shown.
        skip_special: whether special tokens are left out of the text.
        grammar: what the answer must match; None for anything. Nobody has looked into it yet.
    """

    tokens: bytes
    salt: str
    lora: str
    priority: int
    sampling: SamplingParams
    max_tokens: int
    min_tokens: int
    stop_hidden: tuple[int, ...]
    stop_visible: tuple[int, ...]
    stop_strings: tuple[str, ...]
    keep_stop_string: bool
    skip_special: bool
    grammar: Grammar | None

    @property
    def banned_first(self) -> tuple[int, ...]:
        """Tokens that the first one must not be: what would end an answer that must not end yet."""
        return (*self.stop_hidden, *self.stop_visible) if self.min_tokens else ()

    @property
    def prompt_tokens(self) -> int:
        return token_ids.count(self.tokens)


def parse_request(
    request: GenerateRequest, limits: RequestLimits, defaults: SamplingParams, *, first_only: bool = False
) -> ParsedRequest:
    """Translate one request.

    Args:
        request: as Dynamo's frontend sends it.
        limits: of this worker.
        defaults: how tokens are chosen where the request leaves it open.
        first_only: a prefill, for which the frontend lowers ``max_tokens`` to 1 and leaves ``min_tokens``.

    Raises:
        InvalidRequest: the request is malformed, out of range, or asks for something this worker cannot do.
    """
    # Dynamo's type does not name every key the frontend sends, and newer versions name more.
    fields: Mapping[str, Any] = request
    groups = read_option_groups(fields)
    tokens = _packed(fields.get("token_ids"))
    check_prompt(tokens, limits.max_model_len, limits.vocab_size)
    salt = str(groups.routing.get("cache_salt", ""))
    check_salt(salt)
    lora = _adapter(fields, groups.routing, limits.adapters)
    stop, context_left = groups.stop, max(1, limits.max_model_len - token_ids.count(tokens))
    max_tokens = _count(stop, "max_tokens", context_left)
    min_tokens = _count(stop, "min_tokens", 0)
    if max_tokens < 1:
        raise InvalidRequest("max_tokens=0 leaves nothing to generate; ask for at least 1")
    # The room cuts both: the frontend writes it where a request names no most.
    if min(min_tokens, context_left) > max_tokens and not first_only:
        raise InvalidRequest(
            f"min_tokens={min_tokens} is more than max_tokens={max_tokens}; lower the one or raise the other"
        )
    logprobs = _count(groups.output, "logprobs", 0) if "logprobs" in groups.output else None
    sampling = sampling_params({**groups.sampling, **carried_options(fields)}, logprobs, defaults)
    check_sampling(sampling, limits.top_logprobs)
    check_biased(sampling.logit_bias, limits.vocab_size)
    hidden, visible = _stop_tokens(stop, _listed(fields, "eos_token_ids"), limits.vocab_size)
    if min_tokens:
        check_banned((*hidden, *visible), limits.vocab_size)
    return ParsedRequest(
        tokens=tokens,
        salt=salt,
        lora=lora,
        priority=_priority(groups.routing),
        sampling=sampling,
        max_tokens=min(max_tokens, context_left),
        min_tokens=min(min_tokens, context_left),
        stop_hidden=hidden,
        stop_visible=visible,
        stop_strings=_stop_strings(stop),
        keep_stop_string=bool(groups.sampling.get("include_stop_str_in_output")),
        skip_special=groups.output.get("skip_special_tokens") is not False,
        grammar=read_guided_decoding(groups.sampling.get("guided_decoding")),
    )


def _adapter(fields: Mapping[str, Any], routing: Mapping[str, Any], known: frozenset[str]) -> str:
    """An adapter is asked for by the name of its model; routers that place adapters name it as well."""
    name = str(routing.get("lora_name") or "")
    check_lora(name, known)
    model = fields.get("model")
    return name or (model if isinstance(model, str) and model in known else "")


def _priority(routing: Mapping[str, Any]) -> int:
    value = routing.get("priority", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"priority={value!r} should be a whole number; higher ones are served first")
    return value


def _packed(ids: Any) -> bytes:
    if isinstance(ids, (bytes, bytearray, memoryview)):
        # Newer frontends can pack them, as int32: for every id of a vocabulary the same bytes as ours.
        return bytes(ids)
    return token_ids.pack([] if ids is None else ids)


def _stop_tokens(
    stop: Mapping[str, Any], eos_token_ids: Iterable[int], vocab_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids that end the answer, each once: those without text, and those with.

    Those that no answer can have are left out, as some tokenizers name end tokens that their model lacks.
    """

    def known(tokens: Iterable[Any]) -> dict[int, None]:
        ids = list(tokens)
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise InvalidRequest(f"stop token {token!r} should be a token id, which is a whole number")
        return dict.fromkeys(token for token in ids if 0 <= token < vocab_size)

    visible = known(_listed(stop, "stop_token_ids_visible"))
    eos = () if stop.get("ignore_eos") else (*_listed(stop, "stop_token_ids_hidden"), *eos_token_ids)
    hidden = known((*eos, *_listed(stop, "stop_token_ids")))
    return tuple(token for token in hidden if token not in visible), tuple(visible)


def _stop_strings(stop: Mapping[str, Any]) -> tuple[str, ...]:
    for text in (texts := _listed(stop, "stop")):
        if not isinstance(text, str):
            raise InvalidRequest(f"stop={text!r} should be a text")
    return tuple(dict.fromkeys(text for text in texts if text))


def _listed(group: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = group.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{key}={value!r} should be a list")
    return value


def _count(group: Mapping[str, Any], key: str, default: int) -> int:
    value = group.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"{key}={value!r} should be a whole number of at least 0")
    return value
