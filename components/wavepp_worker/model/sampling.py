"""Choosing a token from logits: one request at a time, and the same on prefill and decode."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling_params import SamplingParams

LEAST_LOGPROB = -9999.0
"""What is reported of a token that cannot come: minus infinity has no place in JSON."""
# Below this the distribution is a single token, above this it is even; both well within float32.
_COLDEST, _HOTTEST = 1e-5, 1e30
_LARGEST = torch.finfo(torch.float32).max
_LIKELIEST = (128, 2048)
"""Tokens that are looked at for most of the probability, before all are."""


def sample(
    logits: torch.Tensor,
    params: SamplingParams,
    step: int,
    prompt: np.ndarray | torch.Tensor,
    generated: list[int],
    banned: tuple[int, ...] = (),
    allowed: bytes = b"",
) -> SampledToken:
    """Choose the next token.

    Args:
        logits: float32 ``[vocabulary]``; not changed.
        params: valid, with a seed unless greedy.
        step: how many tokens of this request were generated before; the draw depends on (seed, step) alone.
        prompt: the prompt's token ids, for the repetition penalty.
        generated: the token ids generated so far, for all penalties.
        banned: token ids not to choose; ids outside the vocabulary are ignored.
        allowed: a bit for each token that may be chosen, that of token 0 lowest; empty for all.

    Raises:
        WaveppError: the logits are not numbers, no token may be chosen, or a seed is lacking.
    """
    logits = logits.detach().float().cpu()
    # The largest of some numbers is not a number if one of them is not.
    best = _largest(logits) if len(logits) else None
    if best is None or not float(logits[best]) < math.inf:
        raise WaveppError("the model's logits are not numbers; its weights or dtype do not suit")
    scores = _penalised(_biased(logits, params.logit_bias), params, prompt, generated)
    if banned:
        scores = scores.clone()
        scores[[token for token in banned if 0 <= token < len(scores)]] = -math.inf
    if allowed:
        scores = scores.masked_fill(_forbidden(allowed, len(scores)), -math.inf)
    if scores is not logits:
        best = _largest(scores)
    if float(scores[best]) == -math.inf:
        raise WaveppError(
            "no token is left to choose: every one is banned, or has no probability under the model, or does not go on "
            "to what the answer must match; ask for a lower min_tokens, fewer stop tokens or a wider schema"
        )
    greedy = params.temperature < _COLDEST
    token = best if greedy else _draw(_warped(scores, float(scores[best]), params), params, step)
    if params.logprobs is None:
        return SampledToken(token)
    logprobs = torch.log_softmax(logits, -1).clamp_(min=LEAST_LOGPROB)
    return SampledToken(token, float(logprobs[token]), _best(logprobs, params.logprobs))


def _largest(scores: torch.Tensor) -> int:
    """Where the largest is, the first of equal ones; one that is no number counts as larger than all."""
    # Ten times as fast as torch, whose search takes as long as an answer's part of a small model's wave.
    return int(scores.numpy().argmax())


def _biased(logits: torch.Tensor, biases: tuple[tuple[int, float], ...]) -> torch.Tensor:
    known = [(token, bias) for token, bias in biases if 0 <= token < len(logits)]
    if not known:
        return logits
    tokens, values = zip(*known, strict=True)
    # Summed up if a token stands there twice.
    return logits.index_add(0, torch.tensor(tokens), torch.tensor(values, dtype=torch.float32))


def _penalised(
    logits: torch.Tensor, params: SamplingParams, prompt: np.ndarray | torch.Tensor, generated: list[int]
) -> torch.Tensor:
    new, given = torch.tensor(generated, dtype=torch.int64), logits
    if params.repetition_penalty != 1.0:
        # Imported late, as processes that only pass parameters on need not load transformers.
        from transformers import RepetitionPenaltyLogitsProcessor

        seen = torch.cat([torch.as_tensor(np.asarray(prompt, dtype=np.int64)), new])
        logits = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(seen[None], logits[None])[0]
    if generated and (params.presence_penalty or params.frequency_penalty):
        tokens, counts = new.unique(return_counts=True)
        logits = logits.clone()
        logits[tokens] -= params.presence_penalty + params.frequency_penalty * counts
    if logits is given:
        return logits
    # A penalty may overflow, but neither forbids a token nor allows one that the model forbids.
    return torch.where(given == -math.inf, given, logits.clamp(-_LARGEST, _LARGEST))


def _forbidden(allowed: bytes, count: int) -> torch.Tensor:
    if 8 * len(allowed) < count:
        raise WaveppError(
            f"the mask has bits for {8 * len(allowed)} tokens, and the model {count}; this is a defect"
        )
    bits = np.unpackbits(np.frombuffer(allowed, np.uint8), count=count, bitorder="little")
    return torch.from_numpy(bits) == 0


def _warped(scores: torch.Tensor, best: float, params: SamplingParams) -> torch.Tensor:
    """``best``: the largest of ``scores``."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper

    if abs(best) > _LARGEST * min(1.0, params.temperature):
        # The quotient would overflow. Only differences count.
        scores = scores - best
    batch = TemperatureLogitsWarper(min(params.temperature, _HOTTEST))(None, scores[None])
    if params.top_k:
        batch = TopKLogitsWarper(params.top_k)(None, batch)
    if params.top_p < 1.0:
        batch = _likeliest(batch[0], params.top_p)[None]
    if params.min_p > 0.0:
        batch = MinPLogitsWarper(params.min_p)(None, batch)
    return batch[0]


def _likeliest(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """``scores`` of the fewest tokens, the likeliest, that have this share of all probability together, else -inf.

    What ``TopPLogitsWarper`` does, without sorting the whole vocabulary, which takes ten times as long.
    """
    # Not by the logarithm of all their sum: of a million, as a low temperature makes of scores, it is not sure to 0.06.
    everyone = torch.softmax(scores, -1)
    for count in (*_LIKELIEST, len(scores)):
        best, tokens = torch.topk(scores, min(count, len(scores)))
        shares = everyone[tokens].double()
        before = shares.cumsum(-1) - shares
        if count >= len(scores) or before[-1] + shares[-1] >= mass:
            break
    keeps = before < mass
    return torch.full_like(scores, -math.inf).scatter_(0, tokens[keeps], best[keeps])


def _draw(scores: torch.Tensor, params: SamplingParams, step: int) -> int:
    """Invert the cumulative distribution at a point that (seed, step) hash to."""
    if params.seed is None:
        raise WaveppError("sampling needs a seed; resolve_seed gives one")
    hashed = hashlib.blake2b(f"{params.seed}:{step}".encode(), digest_size=8).digest()
    point = (int.from_bytes(hashed, "little") >> 11) / 2**53
    mass = torch.softmax(scores.double(), -1).cumsum(-1)
    # The first token whose cumulative mass exceeds the point has mass itself, as point < 1.
    token = int(torch.searchsorted(mass, point * float(mass[-1]), right=True))
    if token == len(mass):
        raise WaveppError("the probabilities of the tokens are not numbers; this is a defect of the sampling")
    return token


def _best(logprobs: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` largest, best first; of equal ones the lowest ids."""
    if not count:
        return ()
    least = torch.topk(logprobs, min(count, len(logprobs))).values[-1]
    above = (logprobs > least).nonzero()[:, 0].tolist()
    level = (logprobs == least).nonzero()[: count - len(above), 0].tolist()
    above.sort(key=lambda token: (-float(logprobs[token]), token))
    return tuple((token, float(logprobs[token])) for token in (*above, *level))
