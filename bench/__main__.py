"""The commands that measure WavePP: ``python -m bench`` lists them."""

from __future__ import annotations

from rich.console import Console

from bench.common.tables import plain_table, print_table

COMMANDS = {
    "bench.idle_latency": "where the time to first token of one request goes",
    "bench.proxy_latency": "what the proxy before Dynamo's frontend adds to an answer",
    "bench.cold_bursts": "over how many replicas the router spreads a burst of one new prefix",
    "bench.routing": "cache-aware routing over replicas against round-robin, and what the router knows of reuse",
    "bench.routing.report FILE": "tables of a kept run of bench.routing",
    "bench.kv_dtype": "what keeping KV in FP8 does to logprobs, on a real text",
    "bench.admission": "what finding and claiming 200K reusable tokens costs, against walking the tree twice",
    "bench.ablation": "lockstep, waves, and waves with leases, on real processes under cache pressure",
    "bench.slow_rounds": "what is left of each policy's throughput when admission rounds are slow",
    "bench.round_delay": "throughput with every admission round delayed, against none, on real processes",
    "bench.paper": "the paper's 68 cells under six policies, on virtual devices",
    "bench.paper.report FILE": "tables, verdict and figures of a kept run of bench.paper",
    "bench.paper.compare OLD NEW": "how far two kept runs of bench.paper are apart, cell by cell",
    "bench.paper.cost_models": "cost models fitted to the paper's tables, and their errors",
    "bench.bursts": "cold bursts, trees and agents: what they compute and take, against the least possible",
    "bench.bursts.report FILE": "tables of a kept run of bench.bursts",
    "bench.order": "who is served first when the prefixes do not all fit, and what that brings",
    "bench.host_cost": "what a short request costs the host, and whether memory grows over many of them",
    "bench.profile": "where the time of a wave goes in every stage, beside what a core of this machine can do",
    "bench.partition --model DIR": "how a model's layers are best divided over stages here, by timing one of each kind",
    "bench.decode_steps": "how long a decode worker's step takes on a CPU, by requests and by tokens before them",
    "bench.vllm": "this engine beside vLLM's CPU build, on the same cores",
    "bench.gpu": "this engine on one GPU, beside its rate of matrix products and plain transformers",
    "bench.retention": "how well prefixes survive at rising arrival rates",
    "bench.retention.real": "the same on real ranks with recurrent layers",
    "bench.retention.windows": "how large the pools of sliding windows should be",
    "bench.retention.report FILE": "tables and figure of a kept run of bench.retention",
    "bench.trace FILE": "a public request trace, or a generated one, replayed on virtual devices",
    "bench.timeline_picture PICTURE": "the waves of every rank as a picture, of a timeline or of prompts that run now",
    "bench.planners": "every planner on the paper's cells, without host and cache",
    "bench.planners.open_loop": "every planner on traces at several loads, without host and cache",
    "bench.planners.agents": "every planner on agents, whose turns wait for their last answer, without host and cache",
}
"""What follows ``python -m``, and what it prints."""


def main() -> None:
    """Print every command with a line of what it prints; each has ``--help``."""
    table = plain_table("", "each explains its options with --help", texts=["command", "what it prints"])
    for command, line in COMMANDS.items():
        table.add_row(f"python -m {command}", line)
    print_table(Console(), table)


if __name__ == "__main__":
    main()
