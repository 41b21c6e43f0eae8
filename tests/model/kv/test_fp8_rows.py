from __future__ import annotations

import torch
from wavepp_worker.model.kv.fp8_rows import from_rows, to_rows


def test_each_row_has_a_scale_of_its_own() -> None:
    values = torch.tensor(
        [[448.0, 1.0, -2.0, 0.0], [0.5, -0.25, 0.125, 0.0], [0.0] * 4, [1e-30, 0.0, 0.0, -1e-30]]
    )
    rows = to_rows(values)
    assert (rows.dtype, tuple(rows.shape)) == (torch.uint8, (4, 8))
    assert torch.equal(from_rows(rows, torch.float32)[:2], values[:2])
    torch.testing.assert_close(from_rows(rows, torch.float32), values)


def test_numbers_are_off_by_a_sixteenth_at_most_and_a_second_time_not_at_all() -> None:
    values = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(3)) * 10
    once = from_rows(to_rows(values), torch.bfloat16)
    largest = values.abs().amax(-1, keepdim=True)
    assert ((once.float() - values).abs() <= values.abs() / 16 + largest / 2**9).all()
    assert (once.float() - values).abs().max() > 0.01
    exact = from_rows(to_rows(values), torch.float32)
    torch.testing.assert_close(from_rows(to_rows(exact), torch.float32), exact)
