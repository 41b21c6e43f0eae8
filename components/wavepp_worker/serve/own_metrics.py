"""The samples of this project among all that a worker exports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "wavepp_"


def own_samples(metrics: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Name without its prefix, labels and value of each of our samples in a text of Prometheus' format.

    Raises:
        ValueError: it is no such text.
    """
    # Dynamo's are not asked for, and may be of a kind that the parser does not read.
    own = "\n".join(line for line in metrics.splitlines() if line.startswith(_PREFIX))
    for family in text_string_to_metric_families(own + "\n"):
        for sample in family.samples:
            yield sample.name.removeprefix(_PREFIX), sample.labels, sample.value
