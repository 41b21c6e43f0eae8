"""The event plane's meeting point: publishers connect to it instead of listening themselves.

``DYN_ZMQ_BROKER_URL=… python -m wavepp_worker.serve.broker`` runs one alone, for services
that are started one by one.
"""

from __future__ import annotations

import os
import sys
import threading

import zmq

# A router that is busy for a moment should not miss events, but one that hangs must not eat the memory.
_MOST_WAITING = 100_000


class Broker:
    """Forwards what publishers send (XSUB side) to subscribers (XPUB side), in a thread."""

    def __init__(self, inward: str = "tcp://127.0.0.1:*", outward: str = "tcp://127.0.0.1:*") -> None:
        """Bind both sides and start.

        Raises:
            zmq.ZMQError: an address is in use or not of this machine.
        """
        self._context = zmq.Context()
        sides = [self._context.socket(kind) for kind in (zmq.XSUB, zmq.XPUB)]
        try:
            for side, address in zip(sides, (inward, outward), strict=True):
                side.setsockopt(zmq.LINGER, 0)
                side.setsockopt(zmq.RCVHWM, _MOST_WAITING)
                side.setsockopt(zmq.SNDHWM, _MOST_WAITING)
                side.bind(address)
            bound = [side.getsockopt_string(zmq.LAST_ENDPOINT) for side in sides]
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self.url = f"xsub={bound[0]} , xpub={bound[1]}"
        """What ``DYN_ZMQ_BROKER_URL`` has to be."""
        self._thread = threading.Thread(target=self._forward, args=sides, name="event broker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop forwarding and free the ports; idempotent."""
        if not self._context.closed:
            self._context.term()
            self._thread.join(timeout=5)

    @staticmethod
    def _forward(inward: zmq.Socket[bytes], outward: zmq.Socket[bytes]) -> None:
        try:
            zmq.proxy(inward, outward)
        except zmq.ContextTerminated:
            pass
        finally:
            inward.close()
            outward.close()


def main() -> int:
    """Run a broker at the addresses of ``DYN_ZMQ_BROKER_URL`` until interrupted."""
    url = os.environ.get("DYN_ZMQ_BROKER_URL", "")
    sides = dict(part.strip().partition("=")[::2] for part in url.split(","))
    if set(sides) != {"xsub", "xpub"}:
        print(
            f"error: DYN_ZMQ_BROKER_URL is {url!r}; it should be like "
            "'xsub=tcp://127.0.0.1:15555 , xpub=tcp://127.0.0.1:15556'",
            file=sys.stderr,
        )
        return 2
    try:
        broker = Broker(sides["xsub"], sides["xpub"])
    except zmq.ZMQError as error:
        print(f"error: DYN_ZMQ_BROKER_URL is {url!r}: {error}", file=sys.stderr)
        return 2
    print(f"event broker: {broker.url}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
