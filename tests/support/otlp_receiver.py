"""Receivers of traces on loopback, as a collector is one."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Attributes: ``spans``, those of OpenTelemetry's protocol, and ``url``."""

    def __init__(self, status: int = 200) -> None:
        """``status``: what it answers every request with."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.spans: list[Any] = []
        self.services: dict[bytes, str] = {}
        self.asked = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.asked += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces" and status == 200:
                    for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
                        named = {each.key: each.value.string_value for each in of_process.resource.attributes}
                        for scope in of_process.scope_spans:
                            receiver.spans += scope.spans
                            for span in scope.spans:
                                receiver.services[span.span_id] = named.get("service.name", "")
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving(status: int = 200) -> Iterator[Receiver]:
    """A receiver while the body runs."""
    receiver = Receiver(status)
    try:
        yield receiver
    finally:
        receiver.close()


class GrpcReceiver:
    """The same over gRPC. Attributes: ``spans``, and ``address``, host and port."""

    def __init__(self) -> None:
        import grpc
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        self.spans: list[Any] = []
        receiver = self

        class Service(services.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                for of_process in request.resource_spans:
                    for scope in of_process.scope_spans:
                        receiver.spans += scope.spans
                return ExportTraceServiceResponse()

        self._server = grpc.server(ThreadPoolExecutor(1))
        services.add_TraceServiceServicer_to_server(Service(), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait(10)


@contextmanager
def receiving_grpc() -> Iterator[GrpcReceiver]:
    """A receiver over gRPC while the body runs."""
    receiver = GrpcReceiver()
    try:
        yield receiver
    finally:
        receiver.close()
