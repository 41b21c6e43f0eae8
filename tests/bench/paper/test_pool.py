"""What a worker process is given can be imported there, however the command was started."""

from __future__ import annotations

from bench.common.cells import CELLS, cell_named
from bench.common.systems import SYSTEMS
from bench.paper import pool
from bench.paper.pool import missing
from bench.paper.rows import CellRow
from tests.support.cell_rows import row

GLM = "glm-5.2-pp4"


def test_worker_processes_find_their_functions() -> None:
    """``python -m bench.paper`` runs as ``__main__``, which a spawned process does not import."""
    for function in (pool._set_queue, pool._measure):
        assert function.__module__ == "bench.paper.pool"


def test_cold_cells_come_first_and_kept_ones_not_again() -> None:
    kept: list[CellRow] = [row(f"{GLM} short cold c=8", "mpu")]
    [(model, policy, cells)] = missing([GLM], ["mpu"], "c=8", kept)
    assert (model, policy) == (GLM, "mpu")
    assert cells[0].name == f"{GLM} long cold c=8"
    assert cell_named(f"{GLM} short cold c=8") not in cells
    assert [cell.cold for cell in cells] == sorted((cell.cold for cell in cells), reverse=True)
    everything = missing(list(SYSTEMS), ["mpu"], "", [row(cell.name, "mpu") for cell in CELLS])
    assert everything == []
