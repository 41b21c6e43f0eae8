"""Our samples in a worker's metrics."""

from __future__ import annotations

import pytest
from wavepp_worker.serve.own_metrics import own_samples


def test_only_ours_are_read_with_their_labels() -> None:
    text = (
        'dynamo_odd{le="+Inf" 3\nwavepp_tier_used_blocks{rank="0",tier="host"} 4.0\nwavepp_waves_total 7.0\n'
    )
    assert list(own_samples(text)) == [
        ("tier_used_blocks", {"rank": "0", "tier": "host"}, 4.0),
        ("waves_total", {}, 7.0),
    ]


def test_what_is_no_such_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="seven"):
        list(own_samples("wavepp_waves_total seven\n"))
