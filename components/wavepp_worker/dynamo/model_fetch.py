"""Models that are named by their id on Hugging Face: fetched by Dynamo, as its own workers do."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wavepp_worker.errors import ConfigError

FETCH_SECONDS = 6 * 3600.0
"""That a download may take."""

_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_model_id(model: Path) -> bool:
    """Whether ``model`` is no path here, and looks like ``organisation/name``."""
    return _ID.fullmatch(str(model)) is not None and not str(model).startswith(".") and not model.exists()


def model_name(model: Path) -> str:
    """What clients ask for unless told otherwise: an id as a whole, of a directory its name."""
    return str(model) if is_model_id(model) else model.name


def fetched_model(model: Path) -> Path:
    """The directory of a model: ``model`` itself, or where Dynamo has put what it fetched by that id.

    Takes as long as the download; from the cache of Hugging Face, no time.

    Raises:
        ConfigError: it could not be fetched; names ``model``.
    """
    if not is_model_id(model):
        return model
    # In a thread, as the caller may be inside an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="model fetch") as pool:
        try:
            return Path(pool.submit(asyncio.run, _fetch(str(model))).result())
        except Exception as error:  # Dynamo raises nothing more special
            said = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"model: there is no directory {model} here, and {model} could not be fetched from Hugging Face "
                f"({said}); give a directory, or see that the id is right and that network and HF_TOKEN let it be had"
            ) from error


async def _fetch(model: str) -> str:
    from dynamo.llm import fetch_model

    return await asyncio.wait_for(fetch_model(model), FETCH_SECONDS)
