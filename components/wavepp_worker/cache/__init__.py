"""One rank's KV cache: blocks, the prefix tree that makes them reusable, and who holds what.

``RankCache`` is what the runtime calls. Behind its mutex ``Reservations`` takes each request from lease to release,
asking every window (``windows/``, one class per kind) for its part. A window has a ``BlockTree`` (which blocks there
are, where, held by whom), a ``TierAllocator`` (what moves between device, host and disk) and an ``EscrowLedger``.
"""
