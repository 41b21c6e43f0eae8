"""All that can be said against a configuration before weights are read or a process is started."""

from __future__ import annotations

from wavepp_worker.host_check import check_host
from wavepp_worker.model.device.placement import check_device
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.model.partition import check_partition
from wavepp_worker.model.timed.timed_model import is_timed
from wavepp_worker.runtime.client.config_checks import (
    check_disk_path,
    check_planner,
    check_timeline,
    order_of,
    ownership_of,
    transport_of,
)
from wavepp_worker.runtime.client.disk_room import check_room, disk_use
from wavepp_worker.runtime.client.kv_budget import with_pools
from wavepp_worker.runtime.client.kv_pools import (
    check_recurrent,
    longest_prompt,
    pool_blocks,
    state_blocks,
    tier_blocks,
)
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.thread_check import check_threads


def check_start(config: EngineConfig, shape: ModelShape) -> None:
    """Refuse what the engine would refuse while it starts, in the same words; takes milliseconds.

    Args:
        shape: of the configuration's model.

    Raises:
        ConfigError: it cannot work; the message begins with the key.
    """
    if shape.num_layers is not None:
        check_partition(shape.num_layers, config.pp, config.partition)
    tier_blocks(config)
    check_recurrent(config, shape.caches)
    read_adapters(config.lora_modules)
    if not is_timed(config.model):
        check_device(config.device)
    check_threads(config.threads)
    config = with_pools(config, shape)
    pool_blocks(config)
    state_blocks(config)
    if shape.context_length is not None:
        longest_prompt(config, shape.context_length)
    order_of(config, ownership_of(config))
    if transport_of(config) != "none":
        check_host(config.host)
    check_planner(config)
    check_disk_path(config)
    if (use := disk_use(config, shape)) is not None:
        check_room([use])
    check_timeline(config)
