from __future__ import annotations

from pathlib import Path

from wavepp_worker.runtime.trace.recording import Recording, read_recording
from wavepp_worker.runtime.trace.slices import RankTimeline


def test_a_ranks_file_is_bounded_and_survives_a_torn_write(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    file = Recording(path, limit=20)
    for index in range(95):
        file.timeline.record("loop", "x", index, index + 1)
        if index % 5 == 4:
            file.flush()
    file.close()
    file.close()
    kept = read_recording(path, 4)
    starts = [each.start for each in kept.slices]
    assert starts == list(range(95 - len(starts), 95))
    assert 10 <= len(starts) <= 20
    assert kept.dropped == 95 - len(starts)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert [each.start for each in read_recording(path, 4).slices] == starts[:-5]
    assert read_recording(tmp_path / "never made", 1) == RankTimeline(1, ())
