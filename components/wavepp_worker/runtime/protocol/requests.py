"""What an engine is asked and what it answers: requests, results, what became of a hand-off; frozen and typed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wavepp_worker import token_ids
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.protocol.prefill_trace import PrefillTrace


class PrefillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to prefill; ``PrefillRequest.of`` makes one of a list of token ids.

    Attributes:
        request_id: of the caller, unique among live requests; a duplicate is refused. On its way to the ranks
            the engine replaces it by an id that it never uses again.
        tokens: packed token ids, see ``token_ids``.
        salt: cache isolation key (``cache_salt``); requests share KV only under equal salts.
        lora: name of the LoRA adapter that it goes through, part of the cache key; empty for none.
        sampling: how the first token is chosen.
        handoff: whether the KV is held after the prompt until a decode worker confirms it.
        banned: tokens the first one must not be (stop tokens of a request with ``min_tokens``).
        secret: what a decode worker must know to get the KV; the engine chooses it.
        probe: nobody asked for it: it is in no statistics, and nothing is learned from it.
        priority: who has a higher one is admitted first.
        allowed: a bit for each token that the first one may be, that of token 0 lowest; empty for all.
        traced: the result is to say when it got how far.
    """

    request_id: str
    tokens: bytes
    salt: str = ""
    lora: str = ""
    sampling: SamplingParams = SamplingParams()
    handoff: bool = False
    banned: tuple[int, ...] = ()
    secret: Secret | None = None
    probe: bool = False
    priority: int = 0
    allowed: bytes = b""
    traced: bool = False

    @classmethod
    def of(
        cls,
        request_id: str,
        prompt: Sequence[int],
        *,
        salt: str = "",
        lora: str = "",
        sampling: SamplingParams = SamplingParams(),  # noqa: B008 - frozen
        handoff: bool = False,
        banned: Sequence[int] = (),
    ) -> PrefillRequest:
        """A request to prefill the token ids of ``prompt``; for the rest see the attributes.

        The logprob of the first token is reported also where ``sampling`` asks for no alternatives.

        Raises:
            InvalidRequest: ``prompt`` is not a flat list of token ids.

        >>> request = PrefillRequest.of("r1", [1, 2, 3], sampling=SamplingParams(temperature=0.8, seed=7))
        >>> request.prompt_tokens
        3
        >>> PrefillRequest.of("r2", "a text")
        Traceback (most recent call last):
        wavepp_worker.errors.InvalidRequest: token ids must be one flat list of integers
        """
        # What is no SamplingParams at all is refused where the request is submitted.
        if getattr(sampling, "logprobs", 0) is None:
            sampling = msgspec.structs.replace(sampling, logprobs=0)
        return cls(
            request_id=request_id,
            tokens=token_ids.pack(prompt),
            salt=salt,
            lora=lora,
            sampling=sampling,
            handoff=handoff,
            banned=tuple(banned),
        )

    @property
    def prompt_tokens(self) -> int:
        return token_ids.count(self.tokens)


def check_types(request: PrefillRequest) -> None:
    """Refuse a request that a rank could not read: a struct takes whatever it is made of.

    Raises:
        InvalidRequest: a field has another type than it should, a number does not fit 64 bits, or a text is no
            valid Unicode.
    """
    try:
        # Not the prompt, as copying a long one takes a while.
        read = msgspec.msgpack.encode(msgspec.structs.replace(request, tokens=b""))
        msgspec.msgpack.decode(read, type=PrefillRequest)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"request {request.request_id!r} cannot be sent to the ranks: {error}; give every field the type that "
            "PrefillRequest says, numbers of at most 64 bits and valid Unicode"
        ) from error


class Arrival(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every rank knows of a request. Rank 0 has all of it, and nobody else its tokens.

    Attributes:
        keys: packed keys of the prompt's full blocks, see ``block_keys``.
        handoff, secret, priority, lora, traced: see ``PrefillRequest``.
    """

    request_id: str
    prompt_tokens: int
    keys: bytes
    handoff: bool = False
    secret: Secret | None = None
    priority: int = 0
    lora: str = ""
    traced: bool = False

    @classmethod
    def of(cls, request: PrefillRequest, keys: bytes) -> Arrival:
        """A request whose blocks have these keys."""
        return cls(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            keys=keys,
            handoff=request.handoff,
            secret=request.secret,
            priority=request.priority,
            lora=request.lora,
            traced=request.traced,
        )


class StageTiming(msgspec.Struct, frozen=True):
    """Seconds one rank computed the waves that a request was part of."""

    rank: int
    compute: float


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one prefill went, in seconds."""

    queued: float
    admission: float
    execution: float
    total: float
    stages: tuple[StageTiming, ...] = ()


class PrefillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished prefill answers.

    Attributes:
        first: the first generated token with its logprobs.
        prompt_tokens: length of the prompt.
        reused_tokens: the common reuse endpoint over all ranks.
        timings: where the time went.
        trace: the same by moments and waves, if the request was traced.
    """

    request_id: str
    first: SampledToken
    prompt_tokens: int
    reused_tokens: int
    timings: Timings
    trace: PrefillTrace | None = None

    @property
    def first_token(self) -> int:
        return self.first.token

    @property
    def logprob(self) -> float | None:
        """Of the first token; None only if a request that was not made by ``PrefillRequest.of`` does without."""
        return self.first.logprob

    @property
    def top_logprobs(self) -> tuple[tuple[int, float], ...]:
        return self.first.top

    @property
    def seconds(self) -> float:
        return self.timings.total


class RankHandedOff(msgspec.Struct, frozen=True):
    """How a rank's part of a hand-off ended, and at how many monotonic seconds that was known."""

    rank: int
    outcome: Settled
    at: float


class HandedOff(msgspec.Struct, frozen=True, kw_only=True):
    """The KV of a prefill that was answered is held by no rank any more.

    Attributes:
        answered: monotonic seconds at which its first token was known.
        ranks: in the order in which they let go of it.
    """

    request_id: str
    answered: float
    ranks: tuple[RankHandedOff, ...]

    @property
    def outcome(self) -> Settled:
        """``received`` if all of it was, or else how the first part that was not ended."""
        return next((rank.outcome for rank in self.ranks if rank.outcome != "received"), "received")

    @property
    def seconds(self) -> float:
        """From the first token until the last rank let go; 0 if all had before."""
        return max(0.0, max(rank.at for rank in self.ranks) - self.answered)
