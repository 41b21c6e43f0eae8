"""What a worker is called, where and in which role: settings that no engine reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from wavepp_worker.former_names import Settings

Role = Literal["agg", "prefill", "decode"]
LONGEST_MODEL_NAME = 255
"""Characters, of each of which Dynamo makes a byte of a file's name."""


class WorkerSettings(Settings):
    """A worker under Dynamo. Every field is also a flag of the same name with dashes."""

    disaggregation_mode: Role | None = None
    """Role of ``python -m wavepp_worker``: ``prefill``, ``decode``, or ``agg`` for both in one worker (also called
    ``pd`` or ``prefill_and_decode``); default: ``agg``. The modules of one role take that role alone."""
    served_model_name: str | None = None
    """Name clients ask for; default: the model directory's, or the id on Hugging Face."""
    component: str | None = None
    """Dynamo component; default: ``prefill`` for prefill workers, else ``backend``."""
    bootstrap_port: int = Field(default=0, ge=0, le=65535)
    """Of workers that prefill: port that decode workers claim hand-offs on; 0 picks a free one."""

    perf_metrics: bool = False
    """Serve ``get_perf_metrics`` as well, where Dynamo's planner asks what forward passes cost: those of all sizes so
    far. An entry of its own in discovery."""

    @field_validator("served_model_name")
    @classmethod
    def _one_name(cls, name: str | None) -> str | None:
        if name is not None and (not name.strip() or any(char.isspace() or char == "," for char in name)):
            raise ValueError(
                f"should be one name without blanks and commas, not {name!r}; a worker serves under one"
            )
        if name is not None and len(name) > LONGEST_MODEL_NAME:
            raise ValueError(
                f"should be at most {LONGEST_MODEL_NAME} characters long, as Dynamo names a directory after it; it has "
                f"{len(name)}"
            )
        return name

    @field_validator("disaggregation_mode", mode="before")
    @classmethod
    def _as_ours(cls, mode: object) -> object:
        if mode == "encode":
            raise ValueError(
                "should be agg, prefill or decode; this worker takes text only, so there is no encode role"
            )
        return "agg" if mode in ("pd", "prefill_and_decode") else mode
