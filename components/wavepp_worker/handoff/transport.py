"""Placeholder until the handoff room is complete."""


def resolve_transport(name: str) -> str:
    return name
