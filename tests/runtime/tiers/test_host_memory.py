"""The host tier is there as a whole, or the rank does not start."""

from __future__ import annotations

import pytest
import torch
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.tiers.host_memory import HostMemory

CPU = torch.device("cpu")


def test_one_row_per_block_until_it_is_given_up() -> None:
    host = HostMemory(3, 8, CPU)
    assert (host.rows.shape, host.rows.dtype) == ((3, 8), torch.uint8)
    host.close()
    host.close()
    assert host.rows.untyped_storage().nbytes() == 0


def test_more_memory_than_there_is_names_the_setting_to_lower() -> None:
    with pytest.raises(ConfigError, match=r"cannot have 2\d* bytes of host memory; lower host_kv_tokens"):
        HostMemory(2 * 10**12, 10**6, CPU)
