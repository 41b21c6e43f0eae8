"""One rank's books as production puts them together, over tiers and a hand-off that only note what they are told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import torch
from wavepp_worker.block_keys import SECRET_BYTES, BlockKeyMaker
from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.runtime.protocol.commands import Submit
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.requests import Arrival, PrefillRequest
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.rank.parts import make_parts
from wavepp_worker.runtime.state.lifecycle import Tiers
from wavepp_worker.runtime.state.request_table import LocalRequest

BLOCK = 4

MAKER = BlockKeyMaker(bytes(SECRET_BYTES), "model", BLOCK)

M = TypeVar("M", bound=Message)


def made(name: str, prompt: Sequence[int], handoff: bool) -> PrefillRequest:
    """With the secret that the engine gives a request whose KV is handed off."""
    request = PrefillRequest.of(name, prompt, handoff=handoff)
    return msgspec.structs.replace(request, secret=Secret.fresh()) if handoff else request


def submit(request: PrefillRequest) -> Submit:
    """What the engine sends to rank 0."""
    return Submit(request=request, keys=MAKER.keys(request.tokens, request.salt, request.lora))


def arrival_of(request: PrefillRequest) -> Arrival:
    """What rank 0 tells the others."""
    return Arrival.of(request, submit(request).keys)


@dataclass
class Events:
    """Implements ``EventSink``: what a rank told the engine."""

    told: list[Message] = field(default_factory=list)

    def send(self, *messages: Message) -> None:
        self.told.extend(messages)

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.told if isinstance(message, kind)]


@dataclass
class NotedTiers:
    """Implements ``Tiers``: bytes are nowhere, the disk has lost those of ``lost``, and failed in windows ``off``.

    Attributes:
        last: the run that touched any block last.
        followed: the runs that waves waited for.
        copying: whether those that no wave has waited for are under way.
    """

    moves: list[Move] = field(default_factory=list)
    lost: list[Copy] = field(default_factory=list)
    prefetched: dict[str, list[Copy]] = field(default_factory=dict)
    off: list[int] = field(default_factory=list)
    kept: list[Copy] | None = None
    last: int = 0
    followed: list[int] = field(default_factory=list)
    copying: bool = False

    def last_run(self, window: int, blocks: Sequence[int]) -> int:
        return self.last if len(blocks) else 0

    def follow(self, runs: int) -> None:
        self.followed.append(runs)

    def under_way(self, runs: int) -> bool:
        return self.copying and runs > max(self.followed, default=0)

    def run(self, moves: Sequence[Move]) -> Sequence[Copy]:
        self.moves.extend(moves)
        targets = [Copy(move.window, move.key, *move.target) for move in moves]
        return [copy for copy in targets if copy.tier == Tier.DISK and copy.window in self.off]

    def prefetch(self, request_id: str, copies: Sequence[Copy]) -> Sequence[Copy]:
        self.prefetched[request_id] = list(copies)
        return [copy for copy in copies if copy in self.lost]

    def drop_prefetched(self, request_id: str) -> None:
        self.prefetched.pop(request_id, None)

    def keep_on_disk(self, copies: Collection[Copy]) -> None:
        self.kept = list(copies)

    def switched_off(self) -> Sequence[int]:
        return self.off


@dataclass
class NotedSource:
    """Implements ``KVSource``: the test decides when and how a hand-off ends.

    Attributes:
        calls: what the rank told it, in order: the method's name, the request, and the tokens that can be read.
        tables: of each offered request.
        secrets: of each request that is expected and neither offered nor withdrawn yet.
    """

    address: RankAddress = field(
        default_factory=lambda: RankAddress(
            rank=0,
            host="",
            port=0,
            layers=(0, 1),
            block_size=BLOCK,
            dtype="float32",
            bytes_per_token=1,
            transport="socket",
        )
    )
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    tables: dict[str, list[int]] = field(default_factory=dict)
    secrets: dict[str, Secret] = field(default_factory=dict)

    def expect(self, request_id: str, secret: Secret) -> None:
        self.secrets[request_id] = secret

    def offer(
        self,
        request_id: str,
        block_table: torch.Tensor,
        prompt_tokens: int,
        ready: int,
        state: int | None = None,
    ) -> None:
        del self.secrets[request_id]
        self.calls.append(("offer", request_id, ready))
        self.tables[request_id] = block_table.tolist()

    def advance(self, request_id: str, ready: int, block_table: torch.Tensor | None = None) -> None:
        if block_table is not None:
            self.tables[request_id] = block_table.tolist()
        self.calls.append(("advance", request_id, ready))

    def withdraw(self, request_id: str) -> None:
        if self.secrets.pop(request_id, None) is None:
            self.calls.append(("withdraw", request_id, 0))

    def pending(self) -> int:
        return 0

    def close(self) -> None:
        return None


class RankBooks:
    """The parts of one rank, and what it told its tiers, its hand-off and the engine."""

    def __init__(
        self,
        windows: Sequence[WindowSpec] | None = None,
        *,
        blocks: int = 16,
        rank: int = 0,
        leases: bool = True,
        handoff: bool = True,
        tiers: Tiers | None = None,
    ) -> None:
        """Without ``windows``: one of full attention with ``blocks`` blocks of ``BLOCK`` tokens.

        ``tiers``: where the bytes are, in place of ``NotedTiers``.
        """
        if windows is None:
            windows = [WindowSpec("attention", "full", blocks)]
        self.events, self.tiers, self.source = Events(), NotedTiers(), NotedSource()
        self.cache = RankCache(windows, BLOCK)
        self.parts = make_parts(
            self.cache, tiers or self.tiers, self.events, rank=rank, headroom_blocks=0, leases=leases
        )
        self.lifecycle, self.requests, self.reports = (
            self.parts.lifecycle,
            self.parts.requests,
            self.parts.reports,
        )
        if handoff:
            self.lifecycle.source = self.source

    def announce(self, name: str, prompt: Sequence[int], *, handoff: bool = False) -> LocalRequest:
        self.announce_request(made(name, prompt, handoff))
        return self.requests.known(name)

    def announce_request(self, request: PrefillRequest) -> None:
        """As a plan does it, and on rank 0 the command before it."""
        if self.reports.rank == 0:
            self.requests.submitted(request)
        self.lifecycle.announce(arrival_of(request))

    def admit(self, name: str, prompt: Sequence[int], *, handoff: bool = False) -> LocalRequest:
        """A request that all ranks have committed at what this rank can reuse."""
        return self.admit_request(made(name, prompt, handoff))

    def admit_request(self, request: PrefillRequest) -> LocalRequest:
        """The same of a request with all it says."""
        self.announce_request(request)
        name, tokens = request.request_id, request.prompt_tokens
        local = self.requests.known(name)
        endpoint = self.cache.match(local.keys, tokens)
        prepared = self.cache.prepare(name, local.keys, tokens, endpoint)
        assert prepared is not None
        assert prepared.committed
        self.requests.admit(name, endpoint)
        return local

    def run(self, name: str, prompt: Sequence[int]) -> LocalRequest:
        """A whole request in one chunk, from its announcement to its end."""
        local = self.admit(name, prompt)
        assert self.lifecycle.materialise(name)
        self.execute(local, len(prompt))
        return local

    def execute(self, local: LocalRequest, end: int, compute: tuple[float, ...] = (0.0,)) -> None:
        """Its next chunk, up to token ``end``, as the executor accounts for it."""
        name, last = local.request.request_id, end == local.request.prompt_tokens
        self.lifecycle.chunk_executed(local, Span(name, local.position, end - local.position, last), compute)

    def settled(self, name: str, outcome: Settled) -> None:
        """What the source's thread tells when a hand-off has ended."""
        self.lifecycle.settled(name, outcome)

    def at_rest(self) -> None:
        """Raise unless the books balance, nobody holds anything, and no request is known."""
        self.cache.audit()
        assert self.requests.ids() == ()
