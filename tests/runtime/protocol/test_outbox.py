from __future__ import annotations

import zmq
from wavepp_worker.runtime.protocol.commands import Abort
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.outbox import Outbox


def test_messages_of_one_call_arrive_together_and_in_order() -> None:
    first, second, third = (Abort(request_id=name) for name in ("a", "b", "c"))
    with zmq.Context() as context, context.socket(zmq.PULL) as reader:
        reader.bind("inproc://events")
        outbox = Outbox(context, "inproc://events")
        outbox.send()
        outbox.send(first, second)
        outbox.send(third)
        assert reader.recv_multipart() == [encode(first), encode(second)]
        assert reader.recv_multipart() == [encode(third)]
        assert not reader.poll(0), "a call without messages sends nothing"
        outbox.close()
