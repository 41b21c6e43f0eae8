"""Who is prepared first while not all that wait fit; in blocks of one token, a letter each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from wavepp_worker.block_keys import KEY_BYTES, BlockKeys
from wavepp_worker.cache.results import Standing
from wavepp_worker.runtime.admission.order import PrefixOrder
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.protocol.rounds import Admit


def keys(text: str) -> BlockKeys:
    """Of a prompt with a block for each letter: a key stands for all before it as well."""
    return BlockKeys.of(
        text[: at + 1].encode().rjust(KEY_BYTES, b"\0")[-KEY_BYTES:] for at in range(len(text))
    )


@dataclass
class Cache:
    """What of which prompts is there."""

    free: float = 0
    present: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    leaves_snapshots: bool = False

    def free_tokens(self) -> float:
        return self.free

    def standing(self, keys: BlockKeys, prompt_tokens: int) -> Standing:
        return Standing(*(self._common(keys, texts) for texts in (self.present + self.held, self.held)))

    def _common(self, wanted: BlockKeys, texts: list[str]) -> int:
        return max(
            (sum(a == b for a, b in zip(wanted, keys(text), strict=False)) for text in texts), default=0
        )


@dataclass
class Served:
    """A queue whose ranks have what its cache says, and room for what is asked."""

    cache: Cache = field(default_factory=Cache)
    bound: int = 1000
    limit: int = 64
    now: float = 0.0
    room: float = 20
    order: bool = True
    stages: int = 1
    wave: int = 20

    def __post_init__(self) -> None:
        order = PrefixOrder(self.bound, 1, self.stages, self.wave) if self.order else None
        self.queue = AdmissionQueue(self.limit, block_size=1, order=order)

    def arrive(self, *texts: str, priority: int = 0) -> None:
        for text in texts:
            self.queue.arrive(text, len(text), self.now, keys(text), priority)
        self.queue.work(self.now, 0.0)
        self.hint(*texts)

    def hint(self, *texts: str) -> None:
        found = [Admit(text, self.cache.standing(keys(text), len(text)).present) for text in texts]
        self.queue.apply(RoundOutcome(candidates=tuple(found)), self.now)

    def asked(self) -> list[str]:
        """Who is prepared now; what the candidates are is looked up in between."""
        self.queue.freed()
        work = self.queue.work(self.now, self.room, self.cache)
        while work.hint and not work.prepare:
            self.hint(*work.hint)
            work = self.queue.work(self.now, self.room, self.cache)
        self._asked = work.prepare
        return [admit.request_id for admit in work.prepare]

    def admit(self) -> list[str]:
        asked = self.asked()
        self.queue.apply(RoundOutcome(admitted=self._asked), self.now)
        return asked

    def served(self, *texts: str) -> None:
        """Requests that came, were admitted and are over."""
        self.arrive(*texts)
        self.queue.apply(RoundOutcome(), self.now)
        while set(asked := self.admit()) and asked:
            for text in asked:
                self.queue.ended(text)


def test_who_suits_the_cache_comes_first_under_pressure() -> None:
    served = Served(Cache(present=["abcdefgh"]))
    served.arrive("12345678x", "abcdefghi")
    served.room = 11
    assert served.asked() == ["abcdefghi"]


def test_without_pressure_who_came_first_comes_first() -> None:
    served = Served(Cache(free=18, present=["abcdefgh"]))
    served.arrive("12345678x", "abcdefghi")
    assert served.asked() == ["12345678x", "abcdefghi"]
    served = Served(Cache(free=0, present=["abcdefgh"]), room=18)
    served.arrive("12345678x", "abcdefghi")
    assert served.asked() == ["12345678x", "abcdefghi"], "all of it fits beside what they reuse"


def test_of_what_is_there_what_is_in_use_comes_first_as_it_takes_no_room() -> None:
    served = Served(Cache(present=["12345678"], held=["abcdefgh"]))
    served.arrive("12345678x", "abcdefghi")
    served.room = 9
    assert served.asked() == ["abcdefghi"]


def test_what_many_want_and_nobody_has_comes_before_what_one_wants() -> None:
    served = Served(Cache(), room=19)
    served.arrive("12345678x", "abcdefghi", "abcdefghj", "abcdefghk")
    assert served.admit() == ["abcdefghi"], "who wants the same waits until one makes it"
    served.room = 6
    assert served.asked() == ["abcdefghj", "abcdefghk"]


@pytest.mark.parametrize(("bound", "first"), [(9, "abcdefghi"), (8, "12345678x")])
def test_a_prompt_counts_whole_until_it_is_admitted(bound: int, first: str) -> None:
    served = Served(Cache(held=["abcdefgh"]), bound, room=9)
    served.arrive("12345678x", "abcdefghi")
    assert served.asked() == [first]


def test_what_was_reused_does_not_count_once_a_request_is_admitted_and_nothing_if_it_failed() -> None:
    served = Served(Cache(held=["abcdefgh"]), 10, room=9)
    served.arrive("12345678x", "abcdefghi", "abcdefghj", "abcdefghk")
    assert served.admit() == ["abcdefghi"], "two prompts are more than 10"
    served.room = 8
    assert served.asked() == ["abcdefghj"]
    served.queue.apply(RoundOutcome(failed=("abcdefghj",)), served.now)
    assert served.admit() == ["abcdefghj"]
    assert served.asked() == [], "with 2 passed, 9 more exceed 10: the oldest is next, and does not fit"


def test_who_is_aborted_while_it_is_prepared_has_passed_nobody() -> None:
    served = Served(Cache(held=["abcdefgh"]), 9, room=8)
    served.arrive("12345678x", "abcdefghi", "abcdefghj")
    assert served.asked() == ["abcdefghi"]
    served.queue.withdraw("abcdefghi")
    assert served.asked() == ["abcdefghj"]


def popular(served: Served, *prefixes: str) -> None:
    """Each of these prefixes was there and reused often; now it is gone."""
    served.cache.present = list(prefixes)
    for each in ("i", "j", "k", "l"):
        served.served(*(f"{prefix}{each}" for prefix in prefixes))
    served.cache.present = []


def test_a_popular_prefix_that_had_to_go_comes_back_when_hardly_anything_else_can_be_done() -> None:
    served = Served(Cache(held=["12345678"]), room=200, stages=2)
    popular(served, "abcdefgh")
    served.arrive("12345678x", "12345678y")
    assert served.admit() == ["12345678x", "12345678y"]
    served.arrive("abcdefghm")
    assert served.asked() == [], "two run, on two stages"
    assert served.queue.due(served.now) > served.now, "until something happens, or a while has passed"
    served.arrive("12345678z")
    assert served.admit() == ["12345678z"], "who takes nothing from anybody does not wait for it"
    for name in ("12345678x", "12345678z"):
        served.queue.ended(name)
    assert served.asked() == ["abcdefghm"], "one is left that runs, so a stage would idle"


@pytest.mark.parametrize(("free", "asked"), [(26, 2), (27, 3)])
def test_while_all_that_wait_fits_what_is_free_nobody_is_held_back(free: int, asked: int) -> None:
    served = Served(Cache(held=["12345678"], free=free), room=200, stages=2)
    popular(served, "abcdefgh")
    waiting = ["12345678x", "12345678y", "abcdefghm"]
    served.arrive(*waiting)
    assert served.asked() == waiting[:asked]


def test_a_popular_prefix_that_had_to_go_comes_back_when_many_wait_for_it() -> None:
    served = Served(Cache(held=["12345678"]), room=200)
    popular(served, "abcdefgh")
    served.arrive("12345678x")
    assert served.admit() == ["12345678x"]
    served.arrive(*(f"abcdefgh{each}" for each in "mnopqrs"))
    assert served.asked() == []
    served.arrive("abcdefght")
    assert served.asked() == ["abcdefghm"]


def test_who_would_run_next_counts_as_running() -> None:
    served = Served(Cache(held=["12345678"]), room=200, stages=2)
    popular(served, "abcdefgh")
    served.arrive("12345678x", "12345678y", "abcdefghm")
    assert served.asked() == ["12345678x", "12345678y"]


def test_while_a_popular_prefix_waits_no_more_run_than_keep_the_stages_busy() -> None:
    served = Served(Cache(held=["12345678"]), room=200, stages=2, wave=2)
    popular(served, "abcdefgh")
    served.arrive(*(f"12345678{each}xyz" for each in "stuv"), "abcdefghm")
    assert served.admit() == [f"12345678{each}xyz" for each in "stu"], "three waves of two tokens"
    assert served.asked() == []
    served.queue.ended("12345678sxyz")
    assert served.asked() == ["12345678vxyz"]


def test_one_of_two_popular_prefixes_comes_back_at_a_time() -> None:
    served = Served(Cache(present=["abcdefgh", "12345678"]), room=200)
    for each in "ijklmnop":
        served.served(f"abcdefgh{each}", f"12345678{each}")
    served.cache.present = []
    served.arrive("abcdefghx", "12345678x")
    assert served.admit() == ["abcdefghx"]
    assert served.asked() == [], "nearly every second one will join"
    served.queue.ended("abcdefghx")
    assert served.asked() == ["12345678x"]


def test_who_wants_no_popular_prefix_passes_who_is_held_back_as_far_as_stages_idle() -> None:
    served = Served(Cache(held=["12345678"]), room=200, stages=2, wave=8)
    popular(served, "abcdefgh")
    served.arrive("12345678x", "12345678y")
    assert served.admit() == ["12345678x", "12345678y"]
    served.arrive("abcdefghm", "abcdefghn", *(f"{each}98765432" for each in "stuv"))
    assert served.asked() == ["s98765432", "t98765432", "u98765432"], (
        "with two tokens, 24 for three waves of 8"
    )


def test_a_prefix_that_nobody_asks_for_any_more_is_computed_for_one_while_stages_idle() -> None:
    served = Served(Cache(held=["12345678"]), room=200, stages=2, limit=200)
    popular(served, "abcdefgh")
    for each in "abcdefghijklmnopqrstuvwxyz":
        served.served(f"{each}9876543")
    served.arrive("12345678x", "12345678y", "12345678z")
    served.admit()
    served.arrive("abcdefghm")
    assert served.asked() == ["abcdefghm"], "of the last 33 that came it is one of three"


def test_the_prefix_that_comes_back_is_the_one_that_most_wait_for_also_of_those_who_just_came() -> None:
    served = Served(Cache(present=["abcdefgh", "12345678"], held=["ABCDEFGH"]), room=200, stages=2)
    popular(served, "abcdefgh", "12345678")
    served.arrive("ABCDEFGHx", "ABCDEFGHy")
    assert served.admit() == ["ABCDEFGHx", "ABCDEFGHy"]
    served.arrive("abcdefghm", "abcdefghn", "12345678m")
    assert served.asked() == [], "two run, on two stages"
    served.arrive("12345678n", "12345678o")
    served.queue.ended("ABCDEFGHx")
    assert served.asked() == ["12345678m"]


def test_who_would_hardly_be_joined_by_anybody_does_not_wait_while_stages_idle() -> None:
    """Of many popular prefixes few are there: others who come want other ones."""
    prefixes = [f"{chr(ord('A') + at)}bcdefgh" for at in range(40)]
    served = Served(Cache(held=["12345678"]), room=200, limit=200, stages=2, wave=16)
    served.cache.present = prefixes
    for _ in range(2):
        served.served(*(f"{prefix}x" for prefix in prefixes))
    served.cache.present = []
    for each in "abcdefghijklmnopqrstuvwxyz":
        served.served(f"{each}9876543")
    served.arrive(*(f"12345678{each}" for each in "vwxyz"))
    served.admit()
    served.arrive(*(f"{prefix}y" for prefix in prefixes))
    chosen = served.asked()
    assert len(chosen) == 5, "5 of 9 tokens fill three waves of 16, beside 5 that compute one each"
    assert chosen == [f"{prefix}y" for prefix in prefixes[:5]]


def test_who_has_been_passed_by_a_quarter_of_the_bound_is_not_held_back() -> None:
    served = Served(Cache(held=["12345678"]), 72, room=200, stages=4)
    popular(served, "abcdefgh")
    served.arrive("12345678x", "12345678y", "12345678z")
    served.admit()
    served.arrive("abcdefghm", "12345678mnopq", "12345678qrstu")
    assert served.admit() == ["12345678mnopq", "12345678qrstu"]
    assert served.asked() == [], "it was passed by 10 of 72, as those reused 8 of 13 each"
    served.arrive("12345678mnopqrstuvwxyz")
    assert served.admit() == ["12345678mnopqrstuvwxyz"]
    served.now = 1
    assert served.asked() == ["abcdefghm"], "by 19"


def test_a_prompt_longer_than_half_the_bound_is_not_held_back() -> None:
    served = Served(Cache(held=["12345678"]), 17, room=200)
    popular(served, "abcdefgh")
    served.arrive("12345678x", "12345678y", "abcdefghm")
    assert served.asked() == ["12345678x", "12345678y", "abcdefghm"]


def test_who_was_passed_by_eight_times_as_many_as_were_there_is_not_held_back() -> None:
    """However few tokens they computed."""
    served = Served(Cache(held=["12345678"]), 1000, room=200, stages=2, limit=200)
    popular(served, "abcdefgh")
    served.arrive("12345678x", "12345678y")
    served.admit()
    served.arrive("abcdefghm")
    for at in range(8):
        two = [f"12345678{each}{at}" for each in "vw"]
        served.arrive(*two)
        assert served.admit() == two
        assert served.asked() == []
    served.arrive("12345678z")
    served.admit()
    served.now = 1
    assert served.asked() == ["abcdefghm"], "17 passed it, and two ran when it came"


@pytest.mark.parametrize("order", [False, True])
def test_higher_priorities_come_first_and_nobody_else_passes_for_it(order: bool) -> None:
    served = Served(Cache(held=["abcdefgh"]), room=9, order=order)
    served.arrive("abcdefghi")
    served.arrive("12345678x", priority=1)
    served.arrive("abcdefghj", priority=-1)
    assert served.asked() == ["12345678x"]
    served.queue.apply(RoundOutcome(failed=("12345678x",)), math.inf)
    served.queue.check()
    assert served.asked() == ["12345678x"], "it comes back to its place"


def test_lower_priorities_do_not_wait_behind_a_higher_one_that_is_held_back_while_stages_idle() -> None:
    """It is held back no longer than if all had its own."""
    served = Served(Cache(held=["12345678"]), 120, room=200, stages=2, wave=8)
    popular(served, "abcdefgh")
    served.arrive("12345678x", "12345678y", priority=1)
    assert served.admit() == ["12345678x", "12345678y"]
    served.arrive("abcdefghm", priority=1)
    served.arrive(*(f"{each}98765432" for each in "stuvw"))
    assert served.admit() == ["s98765432", "t98765432", "u98765432"], (
        "with two tokens, 24 for three waves of 8"
    )
    assert served.asked() == []
    served.queue.ended("s98765432")
    assert served.admit() == ["v98765432"]
    served.now = 1
    assert served.asked()[0] == "abcdefghm", "it was passed by 36"
