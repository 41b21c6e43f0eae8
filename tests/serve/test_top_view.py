"""What a frame shows of metrics, and what rates are over."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from wavepp_worker.serve.top_view import (
    RATE_SECONDS,
    Frame,
    History,
    Worker,
    decode_table,
    prefill_table,
    read_frame,
)


def metrics(**values: float) -> str:
    """Of two ranks with a full host tier on rank 0; ``busy`` is rank 1's, a quarter of it rank 0's."""
    busy = values.pop("busy", 0.0)
    lines = [
        "# HELP wavepp_x what",
        'dynamo_component_x{le="+Inf"} 1.0',
        f'wavepp_rank_busy_seconds_total{{rank="1"}} {busy}',
        f'wavepp_rank_busy_seconds_total{{rank="0",worker_id="7"}} {busy / 4}',
        'wavepp_tier_used_blocks{rank="0",tier="host"} 5.0',
        'wavepp_tier_total_blocks{rank="0",tier="host"} 5.0',
        *(f'wavepp_tier_used_blocks{{rank="{rank}",tier="device"}} {rank + 1}.0' for rank in (0, 1)),
        *(f'wavepp_tier_total_blocks{{rank="{rank}",tier="device"}} 4.0' for rank in (0, 1)),
        *(f"wavepp_{name} {value}" for name, value in values.items()),
    ]
    return "\n".join(lines) + "\n"


def history(*frames: tuple[float, dict[str, Any]]) -> History:
    made = History()
    for seconds, values in frames:
        made.add(read_frame(seconds, metrics(**values)))
    return made


def shown(table: Any) -> list[str]:
    """Its lines, a space between two words."""
    console = Console(width=200, file=StringIO())
    console.print(table)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


GAUGES = {
    "used_blocks": 1,
    "total_blocks": 4,
    "waves_in_flight": 3,
    "queued_requests": 5,
    "running_requests": 2,
    "handing_off_requests": 1,
}


def test_a_replica_has_a_row_for_each_rank_and_what_is_of_all_in_the_first() -> None:
    then = {**GAUGES, "waves_total": 1, "prompt_tokens_total": 1000, "reused_tokens_total": 0, "busy": 1.0}
    then |= {"pipeline_active_seconds_total": 2.0, "handoff_offered_bytes_total": 0}
    now = {**then, "waves_total": 9, "prompt_tokens_total": 5000, "reused_tokens_total": 1000, "busy": 2.6}
    now |= {"pipeline_active_seconds_total": 3.8, "handoff_offered_bytes_total": 4_000_000}
    table = prefill_table("mine", [Worker("Prefill:0", history((10.0, then), (12.0, now)))])
    assert shown(table) == [
        "mine",
        "replica rank busy bubble device host KV held waves queued running holding hit "
        "tokens/s computed/s handed off/s",
        "Prefill:0 0 20 % 70 % 25 % 100 % 25 % 3 5 2 1 25 % 2,000 1,500 2.0 MB",
        "1 80 % 10 % 50 % -",
    ]


def test_before_the_second_frame_there_are_no_shares_and_no_rates() -> None:
    once = history((10.0, {**GAUGES, "busy": 5.0}))
    [_, _, first, second] = shown(prefill_table("mine", [Worker("Prefill:0", once)]))
    assert first == "Prefill:0 0 - - 25 % 100 % 25 % 3 5 2 1 - - - -"
    assert second == "1 - - 50 % -"


def test_a_worker_that_says_nothing_is_named() -> None:
    silent = Worker("Prefill:0", History())
    assert shown(prefill_table("mine", [silent]))[2] == "Prefill:0 does not answer"
    assert shown(decode_table([silent]))[1] == "Prefill:0 does not answer"


def test_a_decode_worker_has_a_row() -> None:
    then = {"decode_used_blocks": 1, "decode_total_blocks": 8, "decode_waiting_requests": 4}
    then |= {
        "decode_receiving_requests": 2,
        "decode_running_requests": 7,
        "decode_kv_received_bytes_total": 0,
    }
    now = {**then, "decode_tokens_generated_total": 50, "decode_kv_received_bytes_total": 5_000_000}
    rows = shown(decode_table([Worker("Decode:0", history((1.0, then), (2.0, now)))]))
    assert rows[1] == "Decode:0 12 % 4 2 7 50 5.0 MB"


def test_shares_stay_between_nothing_and_all() -> None:
    """A wave's seconds count when it ends."""
    frames = history((1.0, {"busy": 0.0}), (2.0, {"busy": 3.0}))
    assert shown(prefill_table("mine", [Worker("a", frames)]))[3].startswith("1 100 % 0 %")


def test_busy_and_bubble_are_parts_of_one_second_whenever_they_were_counted() -> None:
    then = {"busy": 0.0, "pipeline_active_seconds_total": 0.0}
    for busy, active, said in ((1.3, 1.58, "100 % 0 %"), (0.8, 1.3, "80 % 20 %")):
        frames = history((1.0, then), (2.0, {"busy": busy, "pipeline_active_seconds_total": active}))
        rows = shown(prefill_table("mine", [Worker("a", frames)]))[2:]
        assert any(said in row for row in rows), rows


def test_rates_are_over_the_frames_of_the_last_seconds() -> None:
    frames = history(*((second, {"prompt_tokens_total": 100 if second < 5 else 200}) for second in range(40)))
    assert frames.increase("prompt_tokens_total", RATE_SECONDS) == (0.0, RATE_SECONDS)
    frames = history(*((second, {"prompt_tokens_total": second * 7}) for second in range(40)))
    assert frames.increase("prompt_tokens_total", RATE_SECONDS) == (7 * RATE_SECONDS, RATE_SECONDS)
    assert frames.rate("prompt_tokens_total", 1.0) == 7.0


def test_a_counter_that_goes_back_is_of_another_life() -> None:
    frames = history((1.0, {"waves_total": 9}), (2.0, {"waves_total": 3}))
    assert frames.rate("waves_total", 1.0) is None


def test_what_is_no_text_of_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        read_frame(0.0, "wavepp_running_requests what\n")
    assert read_frame(0.0, "<html>\n") == Frame(0.0, {})


def test_a_rank_without_a_number_is_no_rank() -> None:
    with pytest.raises(ValueError, match="a rank has a number"):
        read_frame(0.0, 'wavepp_rank_busy_seconds_total{rank="a"} 1\n')
    assert read_frame(0.0, "wavepp_rank_busy_seconds_total 1\n").ranks == []
