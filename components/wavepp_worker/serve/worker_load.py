"""What a worker does at this moment, for people: from its metrics. Pure."""

from __future__ import annotations

from collections import defaultdict

from wavepp_worker.serve.own_metrics import own_samples


def load_lines(metrics: str) -> list[str]:
    """A line for each engine that a worker's metrics, in Prometheus' text format, are of.

    Raises:
        ValueError: it is no such text.
    """
    values: dict[str, float] = defaultdict(float)
    for name, _, value in own_samples(metrics):
        values[name] += value
    lines = []
    if "running_requests" in values:
        lines.append(
            f"prefill now: {values['running_requests']:.0f} running, {values['queued_requests']:.0f} waiting, "
            f"{values['handing_off_requests']:.0f} handing KV off; requests hold "
            f"{_percent(values['used_blocks'], values['total_blocks'])} of KV; since its start "
            f"{_percent(values['reused_tokens_total'], values['prompt_tokens_total'])} of "
            f"{values['prompt_tokens_total']:,.0f} prompt tokens reused"
        )
    if "jobs_held" in values:
        lines.append(
            f"jobs now: {values['jobs_held']:.0f} taken, {values['jobs_waiting']:.0f} of them waiting; "
            f"{values['jobs_queued']:.0f} in the queue"
        )
    if "remote_prefills_total" in values:
        lines.append(
            f"since its start {values['remote_prefills_total']:,.0f} prompts sent to the queue, of which "
            f"{values['remote_prefills_returned_total']:,.0f} came back"
        )
    if "decode_running_requests" in values:
        lines.append(
            f"decode now: {values['decode_running_requests']:.0f} running, "
            f"{values['decode_waiting_requests']:.0f} waiting, {values['decode_receiving_requests']:.0f} receiving "
            f"KV; requests hold {_percent(values['decode_used_blocks'], values['decode_total_blocks'])} of KV; since "
            f"its start {values['decode_tokens_generated_total']:,.0f} tokens generated"
        )
    return lines


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.0f} %"
