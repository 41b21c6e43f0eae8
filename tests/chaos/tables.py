"""A campaign's summary as tables."""

from __future__ import annotations

from rich.console import Console

from bench.common.tables import plain_table, print_table
from tests.chaos.summary import Summary

MOST_SENTENCES = 30


def print_summary(console: Console, summary: Summary) -> None:
    """Faults, requests, slopes, and what failed."""
    title = (
        f"{summary.setting}, seed {summary.seed}, {summary.seconds:.0f} s, {summary.commit}, {summary.date}"
    )
    faults = plain_table(title, texts=("fault",), numbers=("injected", "nobody there", "answers after (s)"))
    for name, figures in summary.faults.items():
        took = (
            "" if not figures.injected else "never" if figures.recovery is None else f"{figures.recovery:.1f}"
        )
        faults.add_row(name, str(figures.injected), str(figures.missed), took)
    print_table(console, faults)
    requests = plain_table("requests", texts=("outcome",), numbers=("count",))
    for name, count in summary.outcomes.items():
        requests.add_row(name, str(count))
    print_table(console, requests)
    rest = plain_table("the rest", texts=("what",), numbers=("figure",))
    rest.add_row("longest time to an answer or an error", f"{summary.longest_answer:.1f} s")
    longest = summary.longest_recovery
    rest.add_row("longest time from a fault to an answer", "never" if longest is None else f"{longest:.1f} s")
    rest.add_row("errors without a fault", str(len(summary.unexplained)))
    rest.add_row("workers whose books balance", str(summary.audited))
    if summary.jobs is not None:
        rest.add_row("jobs that came to the queue", str(summary.jobs))
    if summary.queued is not None:
        rest.add_row("jobs left in the queue", str(summary.queued))
    rest.add_row("leaks", str(len(summary.leaks)))
    for role, (median, most, lives) in summary.rss_mib_per_hour.items():
        rest.add_row(f"RSS of {role}, {lives} long lives", f"{median:+.1f}, at most {most:+.1f} MiB/h")
        median, most, _ = summary.rss_mib_per_10k_requests[role]
        rest.add_row("", f"{median:+.1f}, at most {most:+.1f} MiB per 10,000 requests")
    print_table(console, rest)
    for sentence in summary.failures[:MOST_SENTENCES]:
        console.print(f"[bold red]failed:[/] {sentence[:1000]}", highlight=False)
    if len(summary.failures) > MOST_SENTENCES:
        console.print(f"[bold red]failed:[/] {len(summary.failures) - MOST_SENTENCES} times more")
