"""Where Dynamo's variables have processes find and hear each other: whether they could meet there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.writable import check_writable

STORE_VARIABLE = "DYN_FILE_KV"
_BROKER = "DYN_ZMQ_BROKER_URL"


def check_meeting_places(environment: Mapping[str, str], discovery: str, events: str | None) -> None:
    """Refuse what Dynamo would find out only after the model is loaded, with a stack trace and a new start.

    Args:
        environment: what is empty counts as not set.
        discovery: Dynamo's name of how processes find each other.
        events: likewise of how they hear of events; None for Dynamo's default, ZeroMQ.

    Raises:
        ConfigError: names the variable.
    """
    if discovery == "file" and (store := environment.get(STORE_VARIABLE)):
        try:
            check_writable(Path(store))
        except OSError as error:
            raise ConfigError(
                f"{STORE_VARIABLE}: {store!r} is no directory that processes could meet in ({error.strerror}); "
                "name one that can be made and written to, or leave it out"
            ) from error
    if events in (None, "zmq") and (url := environment.get(_BROKER)):
        _check_broker(url)


def _check_broker(url: str) -> None:
    import zmq

    sides = [part.strip().partition("=")[::2] for part in url.split(",")]
    context = zmq.Context()
    try:
        if sorted(side for side, _ in sides) != ["xpub", "xsub"]:
            raise ValueError(url)
        for _, addresses in sides:
            named = [each.strip() for each in addresses.split(";") if each.strip()]
            if not named:
                raise ValueError(url)
            for address in named:
                # Nobody has to be there yet: this is about the words.
                context.socket(zmq.SUB).connect(address)
    except (ValueError, zmq.ZMQError) as error:
        raise ConfigError(
            f"{_BROKER}: {url!r} does not say where an event broker is; it should be like "
            "'xsub=tcp://127.0.0.1:15555 , xpub=tcp://127.0.0.1:15556', or left out"
        ) from error
    finally:
        context.destroy(linger=0)
