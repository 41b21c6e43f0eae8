"""What a campaign found: one entry for each kind of trouble, with the smallest input that caused it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Finding:
    """One kind of trouble.

    Attributes:
        times: how often it was seen.
        smallest: the shortest input seen to cause it, as text.
    """

    times: int
    smallest: str


@dataclass
class Findings:
    """All kinds of trouble, by a sentence that names the kind."""

    by_kind: dict[str, Finding] = field(default_factory=dict)

    def add(self, kind: str, cause: object) -> None:
        """Note one occurrence."""
        text = str(cause)
        known = self.by_kind.get(kind)
        if known is None:
            self.by_kind[kind] = Finding(1, text)
            return
        known.times += 1
        if len(text) < len(known.smallest):
            known.smallest = text

    def __len__(self) -> int:
        return len(self.by_kind)

    def __str__(self) -> str:
        return "\n".join(
            f"{kind} ({finding.times} times), such as {finding.smallest}"
            for kind, finding in self.by_kind.items()
        )
