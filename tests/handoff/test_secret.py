"""A secret is long, of one request, and seen by nobody."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from wavepp_worker.handoff.claim_messages import ClaimRoom
from wavepp_worker.handoff.offer import BootstrapAddress, Offer
from wavepp_worker.handoff.pull_messages import FROM_PULLER, Pull
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.runtime.protocol.requests import PrefillRequest


def test_no_two_are_the_same_and_they_cannot_be_guessed() -> None:
    made = [Secret.fresh() for _ in range(100)]
    assert len({secret.value for secret in made}) == 100
    assert all(len(secret.value) >= 16 for secret in made)
    assert made[0].matches(Secret.from_hex(made[0].hex()))
    assert not made[0].matches(made[1])
    assert not made[0].matches(Secret(made[0].value[:-1]))


def test_the_secret_of_a_room_tells_nothing_of_another() -> None:
    key = Secret.fresh()
    rooms = [key.for_room(room) for room in range(100)]
    assert len({room.value for room in rooms}) == 100
    assert key.for_room(7).matches(rooms[7])
    assert not Secret.fresh().for_room(7).matches(rooms[7])
    assert all(not room.matches(key) for room in rooms)


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33])
def test_what_is_no_secret_is_not_taken_for_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"secret|hexadecimal"):
        Secret.from_hex(text)


@pytest.mark.parametrize("size", [0, 15, 65, 60000])
def test_a_message_with_a_secret_of_another_length_is_refused(size: int) -> None:
    sent = msgspec.msgpack.encode(
        {"type": "Pull", "request_id": "a", "wait": 1.0, "secret": {"value": b"x" * size}}
    )
    with pytest.raises(msgspec.ValidationError, match="secret"):
        FROM_PULLER.decode(sent)


SECRET = Secret(b"0123456789abcdef" * 2)


@pytest.mark.parametrize(
    "holder",
    [
        SECRET,
        Pull(request_id="a", secret=SECRET, wait=1.0),
        ClaimRoom(room=1, secret=SECRET, wait=1.0),
        Offer(request_id="a", secret=SECRET, prompt_tokens=1, model_id="m", ranks=()),
        BootstrapAddress(host="h", port=1, room=1, secret=SECRET),
        msgspec.structs.replace(PrefillRequest.of("a", [1], handoff=True), secret=SECRET),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_nothing_that_has_one_shows_it(holder: Any, caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").debug("%s %r", holder, holder)
    for text in (repr(holder), str(holder), f"{holder}", f"{[holder]}", caplog.text):
        assert "0123456789abcdef" not in text
        assert SECRET.hex()[:16] not in text
        assert "Secret(...)" in text
