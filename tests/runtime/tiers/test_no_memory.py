from __future__ import annotations

import torch
from wavepp_worker.runtime.tiers.no_memory import NoMemory


def test_what_is_copied_of_it_is_as_many_bytes_as_blocks() -> None:
    memory = NoMemory(5, torch.device("cpu"))
    blocks = torch.tensor([4, 0])
    copied = memory.export_blocks(blocks)
    assert copied.shape == (2, memory.block_bytes)
    memory.import_blocks(blocks, copied)
