"""Settings that have more than one name: those they had once, of which users are told the present one, and those that
Dynamo's other workers have for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, ValidationError, model_validator
from typing_extensions import Self

from wavepp_worker.errors import ConfigError
from wavepp_worker.setting_errors import explain

logger = logging.getLogger(__name__)

FORMER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "chunk": "max_num_batched_tokens",
        "block": "block_size",
        "max_batch": "max_num_seqs",
        "min_chunk": "min_num_batched_tokens",
        "chunk_cost": "wave_cost",
    }
)
"""Former name to present name."""
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "model_path": "model",
        "pipeline_parallel_size": "pp",
        "kv_block_size": "block_size",
        "max_num_tokens": "max_num_batched_tokens",
        "max_batch_size": "max_num_seqs",
        "max_seq_len": "max_model_len",
        "max_logprobs": "top_logprobs",
        "kv_cache_dtype": "kv_dtype",
        "free_gpu_memory_fraction": "kv_memory_fraction",
        "gpu_memory_utilization": "kv_memory_fraction",
    }
)
"""What Dynamo's workers for TensorRT-LLM and vLLM call a setting, to our name of it."""
NAMES: Mapping[str, str] = MappingProxyType({**FORMER_NAMES, **OTHER_NAMES})
"""Every further name of a setting to the one that it has here."""
DEFAULT_POOL_TOKENS = 32768
"""Tokens of a KV pool whose size nobody asked for, where there is no worker that asks for a fraction of memory."""
LONGEST_SECONDS = 1e6
"""The most that a limit of time can be set to, eleven days: sockets count twice as many milliseconds in 31 bits."""
SHORTEST_SECONDS = 0.1
"""The least that a limit of time can be set to in which others have to answer: below it none would."""

_told: set[str] = set()


def former_name(key: str) -> str | None:
    """What ``key`` was called before, if it was."""
    return next((former for former, present in FORMER_NAMES.items() if present == key), None)


def further_names(key: str) -> tuple[str, ...]:
    """What ``key`` may be called as well."""
    return tuple(other for other, present in NAMES.items() if present == key)


def present_name(key: str) -> str:
    """What ``key`` is called here and now."""
    return NAMES.get(key, key)


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the settings of ``over`` in place of its own, whichever names either uses."""
    replaced = set(map(present_name, over))
    return {**{key: value for key, value in base.items() if present_name(key) not in replaced}, **over}


def check_names(
    keys: Iterable[str], spell: Callable[[str], str] = str, names: Mapping[str, str] = NAMES
) -> None:
    """Tell whoever used a former name the present one.

    Args:
        keys: names of settings that were given together.
        spell: how they are written where they were given, such as ``--key``.
        names: further name to present name.

    Raises:
        ValueError: a setting was given under two of its names.
    """
    given = set(keys)
    first: dict[str, str] = {}
    for name in (*sorted(given - names.keys()), *filter(given.__contains__, names)):
        present = names.get(name, name)
        before = first.setdefault(present, name)
        former = name in names and not _is_others(name)
        if before == present != name and former:
            raise ValueError(
                f"{spell(name)} and {spell(present)} are the former and the present name of one setting; "
                f"give {spell(present)} alone"
            )
        if before != name:
            raise ValueError(
                f"{spell(name)} and {spell(before)} are two names of one setting; give one of them"
            )
        if former and name not in _told:
            _told.add(name)
            logger.warning("%s is now called %s; the former name keeps working", spell(name), spell(present))


def _is_others(name: str) -> bool:
    """Whether a name is one that other workers have for a setting, of either half of a worker that does both."""
    return name.removeprefix("decode_") in OTHER_NAMES


def _any_name(field: str) -> str | AliasChoices:
    further = further_names(field)
    return AliasChoices(field, *further) if further else field


class Settings(BaseModel):
    """Base of a configuration: frozen, without unknown keys, and taking fields under their further names too.

    Errors name a field as it was given.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        alias_generator=AliasGenerator(validation_alias=_any_name),
    )

    def __init__(self, **given: Any) -> None:
        """Check every setting.

        Raises:
            ConfigError: one is unknown, lacking, of a wrong type or out of range; names each that is.
        """
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self).model_fields)) from error

    @classmethod
    def spelt(cls, given: Mapping[str, Any], spell: Callable[[str], str]) -> Self:
        """A configuration of settings that were written in some other way, which errors name them by.

        Args:
            given: the settings by their names here.
            spell: how a name was written, such as ``--key``.

        Raises:
            ConfigError: as for one that is made directly.
        """
        try:
            return cls(**given)
        except ConfigError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            raise ConfigError(explain(error.__cause__, cls.model_fields, spell)) from error

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same configuration with some settings changed, checked anew.

        Raises:
            ConfigError: as for a new one.
        """
        del deep
        return type(self)(
            **{name: getattr(self, name) for name in self.model_fields_set} | dict(update or {})
        )

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (
            getattr(self, "kv_tokens", None) is not None
            and getattr(self, "kv_memory_fraction", None) is not None
        ):
            raise ValueError(
                "kv_tokens and kv_memory_fraction both say how large the KV pool is; give one of them"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            check_names(given)
        return given
