"""How many agents of ranks stay connected, and which."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import AuditError
from wavepp_worker.handoff.decode import nixl_agents as module
from wavepp_worker.handoff.decode.nixl_agents import RemoteAgents


class Nixl:
    """Stands for this worker's agent: knows who is connected, and refuses who is already or not."""

    def __init__(self) -> None:
        self.connected: list[str] = []
        self.added = 0

    def add_remote_agent(self, metadata: bytes) -> bytes:
        assert metadata.decode() not in self.connected
        if metadata == b"broken":
            raise RuntimeError("no such agent")
        self.added += 1
        self.connected.append(metadata.decode())
        return metadata

    def remove_remote_agent(self, name: str) -> None:
        self.connected.remove(name)


def use(agents: RemoteAgents, name: str) -> None:
    with agents.connected(name.encode()) as connected:
        assert connected == name


def test_ranks_that_start_again_and_again_leave_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every restart of a rank makes another agent."""
    monkeypatch.setattr(module, "AGENTS_KEPT", 3)
    nixl = Nixl()
    agents = RemoteAgents(nixl)
    for life in range(20):
        use(agents, "steady")
        use(agents, f"life {life}")
        agents.check()
    assert sorted(nixl.connected) == ["life 18", "life 19", "steady"]
    assert nixl.added == 21


def test_one_that_is_read_from_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGENTS_KEPT", 0)
    nixl = Nixl()
    agents = RemoteAgents(nixl)
    with agents.connected(b"a"):
        use(agents, "b")
        with agents.connected(b"a"):
            pass
        assert nixl.connected == ["a"]
    assert nixl.connected == []


def test_a_lost_one_is_dropped_once_nobody_reads_from_it() -> None:
    nixl = Nixl()
    agents = RemoteAgents(nixl)
    use(agents, "a")
    agents.drop(b"a")
    agents.drop(b"a")
    assert nixl.connected == []
    with agents.connected(b"a"):
        agents.drop(b"a")
        assert nixl.connected == ["a"]
    assert nixl.connected == []
    use(agents, "a")
    assert nixl.added == 3


def test_one_that_cannot_be_connected_leaves_nothing() -> None:
    nixl = Nixl()
    agents = RemoteAgents(nixl)
    with pytest.raises(RuntimeError), agents.connected(b"broken"):
        pass
    assert (len(agents), nixl.connected) == (0, [])


def test_check_counts_the_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = RemoteAgents(Nixl())
    use(agents, "a")
    use(agents, "b")
    monkeypatch.setattr(module, "AGENTS_KEPT", 1)
    with pytest.raises(AuditError, match="2 unused NIXL agents are connected, but 1 are kept at most"):
        agents.check()
