from __future__ import annotations

from pathlib import Path

from wavepp_worker.liveness.deaths import VARIABLE, Death, DeathNotes, deaths_since, missed_since


def test_who_died_since_is_told_with_their_last_death(tmp_path: Path) -> None:
    path = tmp_path / "deaths.json"
    environment = {VARIABLE: str(path)}
    assert deaths_since(environment, 0.0) == []
    notes = DeathNotes(path)
    notes.note(Death("A:0", "failed", 1.0))
    notes.note(Death("B:0", "was ended by SIGKILL", 2.0))
    notes.note(Death("A:0", "ended with exit code 70", 3.0))
    assert deaths_since(environment, 2.0) == [
        Death("B:0", "was ended by SIGKILL", 2.0),
        Death("A:0", "ended with exit code 70", 3.0),
    ]
    assert deaths_since(environment, 3.5) == []
    assert deaths_since({}, 0.0) == []


def test_who_is_missed_is_told_of_until_after_it_is_back(tmp_path: Path) -> None:
    environment = {VARIABLE: str(tmp_path / "deaths.json")}
    notes = DeathNotes(tmp_path / "deaths.json")
    notes.back("A:0", 0.5)
    assert missed_since(environment, 0.0) == []
    death = Death("A:0", "was ended by SIGKILL", 1.0)
    notes.note(death)
    notes.note(Death("B:0", "failed", 2.0))
    assert missed_since(environment, 100.0) == [death, Death("B:0", "failed", 2.0)]
    notes.back("B:0", 3.0)
    assert missed_since(environment, 3.0) == [death], "who is well is not to blame"
    notes.back("A:0", 3.2)
    both = [Death("A:0", "was ended by SIGKILL", 1.0, back=3.2), Death("B:0", "failed", 2.0, back=3.0)]
    assert missed_since(environment, 3.0) == both, "the frontend may not have found them yet"
    assert missed_since(environment, 3.1) == both[:1]
    assert missed_since(environment, 3.5) == []
    assert missed_since({}, 0.0) == []


def test_only_the_last_deaths_are_kept_and_a_file_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    notes = DeathNotes(tmp_path / "deaths.json")
    for number in range(1000):
        notes.note(Death("A:0", "failed", float(number)))
    assert (tmp_path / "deaths.json").stat().st_size < 200
    assert len(deaths_since({VARIABLE: str(tmp_path / "deaths.json")}, 0.0)) == 1
    DeathNotes(tmp_path / "gone" / "deaths.json").note(Death("A:0", "failed", 1.0))
    (tmp_path / "deaths.json").write_text("not what we write")
    assert deaths_since({VARIABLE: str(tmp_path / "deaths.json")}, 0.0) == []
