"""Every step of admission by itself, on one rank whose tree changes without a pause."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from wavepp_worker.block_keys import BlockKeys

from bench.admission.cached_rank import CachedRank, key_maker
from bench.admission.long_prompts import LongPrompts
from bench.admission.samples import INDEX, WALKS, Samples, timed
from bench.admission.two_walks import first_walk
from bench.common.prompts import Prompts


def measure_steps(traffic: LongPrompts, concurrency: int, turns: int, tick: Callable[[], None]) -> Samples:
    """Seconds of every step of admission on one rank; in every turn ``concurrency`` new prompts wait."""
    samples: Samples = defaultdict(list)
    prefixes, new, tokens = traffic.prefixes(), Prompts(seed=1), traffic.tokens
    maker = key_maker(traffic)
    # By the engine, which is a process of its own: no tree changes beside it.
    packed = [
        [
            timed(samples["keys of a prompt"], maker.keys, prompt)
            for prompt in traffic.prompts(prefixes, concurrency, new)
        ]
        for _ in range(turns)
    ]
    with CachedRank(0, traffic, pause=0.0) as rank:
        cache = rank.cache
        for turn in range(turns):
            waiting = {f"{turn}-{at}": BlockKeys(each) for at, each in enumerate(packed[turn])}
            begun = time.perf_counter()
            for keys in waiting.values():
                timed(samples["look-up: two walks (the first)"], first_walk, cache, keys, tokens)
            samples[f"look-up of all that wait: {WALKS}"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            for keys in waiting.values():
                timed(samples["look-up: hint index"], cache.hint, keys, tokens)
            samples[f"look-up of all that wait: {INDEX}"].append(time.perf_counter() - begun)
            for name, keys in waiting.items():
                hint = cache.hint(keys, tokens)
                end = timed(samples["lease"], cache.lease, name, keys, tokens, hint)
                if end != hint or hint < 0.99 * traffic.shared * tokens:
                    raise RuntimeError(
                        f"hinted {hint} tokens, leased {end}: the branches are not in the cache"
                    )
                if not timed(samples["escrow"], cache.reserve, name):
                    raise RuntimeError("the cache is too small; give it more --room")
                timed(samples["commit"], cache.commit, name, end)
                timed(samples["materialise"], cache.materialise, name)
                timed(samples["publish"], cache.publish, name, tokens)
                timed(samples["release"], cache.release, name)
            # A turn with short prompts may be over before the other thread has its turn.
            rank.await_change()
            tick()
    cache.check()
    return samples
