"""What every rank does around the forward of a wave, whatever computes it (paper, section 4.6; promise 12)."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.waves import Span, WaveHeader
from wavepp_worker.runtime.state.idle_seconds import Cause
from wavepp_worker.runtime.state.lifecycle import RequestLifecycle
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import LocalRequest, RequestTable, check_span


class ExecutionOrder:
    """Which wave comes next on this rank, and where its requests have to stand. Used by the LOOP thread."""

    def __init__(self, requests: RequestTable, lifecycle: RequestLifecycle, reports: RankReports) -> None:
        self._requests = requests
        self._lifecycle = lifecycle
        self._reports = reports
        self._next_wave = 0

    def unadmitted(self, spans: Sequence[Span]) -> Span | None:
        """The first span whose request this rank does not know to be admitted yet; None if the wave can run."""
        return next((span for span in spans if not self._requests.admitted(span.request_id)), None)

    def waits_for(self) -> Cause:
        """As of ``RequestTable``."""
        return self._requests.waits_for()

    def ready(self, request_id: str) -> bool:
        """Whether all that a request reuses has been computed here, so that it can be materialised."""
        return self._lifecycle.ready(request_id)

    def materialise(self, request_id: str) -> bool:
        """Claim a request's blocks, if that has not been done; returns whether it did."""
        return self._lifecycle.materialise(request_id)

    def claim(self, spans: Sequence[Span]) -> list[str]:
        """Claim the blocks of all that the next wave carries, in its order; returns those for whom it was done now.

        Raises:
            PositionMismatch: somebody reads what no wave before this one computes, nor an earlier chunk of this one.
        """
        claimed = []
        # Looked at before any of them gets blocks: several may wait for the same.
        writers = {span.request_id: self._waits_for(span.request_id) for span in spans}
        for at, span in enumerate(spans):
            name, writer = span.request_id, writers[span.request_id]
            if writer and self._waits_for(name):
                self._publish_ahead(writer, span, spans[:at])
            if self._lifecycle.materialise(name, written=not writer):
                claimed.append(name)
        return claimed

    def begin(self, header: WaveHeader) -> list[LocalRequest]:
        """Make a wave's requests executable; returns them in the order of the spans.

        Raises:
            PositionMismatch: the wave is not the next one, or a chunk is not the next one of its request.
        """
        if header.wave_id != self._next_wave:
            raise PositionMismatch(f"wave {header.wave_id} arrived, wave {self._next_wave} is next")
        self._next_wave += 1
        self.claim(header.spans)
        locals_ = []
        for span in header.spans:
            local = self._requests.known(span.request_id)
            check_span(local, span)
            self._lifecycle.chunk_begins(local, span.start + span.length)
            locals_.append(local)
        self._lifecycle.wave_begins(locals_)
        return locals_

    def end(self, locals_: Sequence[LocalRequest], spans: Sequence[Span], compute: tuple[float, ...]) -> None:
        """Account for a wave that was executed or queued on the device: what follows may rely on its blocks.

        ``compute``: seconds each rank up to this one took for it; 0 for this one if they are ``measured`` later.
        """
        for local, span in zip(locals_, spans, strict=True):
            self._lifecycle.chunk_executed(local, span, compute, more=span is not spans[-1])
        counted = any(not local.probe for local in locals_)
        self._reports.wave_executed(compute[-1] if compute else 0.0, counted=counted)

    def measured(self, seconds: float) -> None:
        """So long this rank's device took for a wave that was accounted for."""
        self._reports.busy += seconds

    def _waits_for(self, request_id: str) -> str:
        """Whose blocks in the making a request waits for; empty if for nobody's, or if it has its own."""
        local = self._requests.get(request_id)
        return "" if local is None or local.table is not None else self._lifecycle.writer_of(request_id)

    def _publish_ahead(self, writer: str, reader: Span, before: Sequence[Span]) -> None:
        chunk = next((span for span in before if span.request_id == writer), None)
        if chunk is None or chunk.start + chunk.length < reader.start:
            raise PositionMismatch(
                f"request {reader.request_id} is scheduled at token {reader.start}, but reads blocks that {writer} "
                "has not computed, nor does it before in this wave"
            )
        self._lifecycle.publish_ahead(self._requests.known(writer), chunk.start + chunk.length)
