from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.intake.remote_config import RemotePrefillConfig


def test_an_endpoint_has_three_names() -> None:
    assert RemotePrefillConfig().remote_prefill_endpoint is None
    for path in ("a.b.c", "dyn://a.b.c"):
        assert RemotePrefillConfig(remote_prefill_endpoint=path).remote_prefill_endpoint == "a.b.c"
    for wrong in ("a.b", "a..c", "", "a.b.c.d"):
        with pytest.raises(ConfigError, match="remote_prefill_endpoint: should be NAMESPACE"):
            RemotePrefillConfig(remote_prefill_endpoint=wrong)
