"""Stands in for a worker or a frontend: answers health checks, and misbehaves as its flags say."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--http-host", default="127.0.0.1")
parser.add_argument("--http-port", type=int, default=0, help="be a frontend")
parser.add_argument("--workers-known", type=int, default=1, help="as a frontend")
parser.add_argument("--say", default="")
parser.add_argument("--exit-code", type=int)
parser.add_argument("--exit-after", type=float, default=0.0)
parser.add_argument("--once", help="exit only if this file does not exist yet, and make it")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--drains", type=float, default=0.0, help="be sick for so long when told to stop")
parser.add_argument(
    "--leaves", type=float, default=0.0, help="stay for so long when told to stop, and say so"
)
parser.add_argument("--sick-after", type=float, default=1e9, help="seconds from when it is first asked")
parser.add_argument("--sick-if", help="be so from the start if this file exists")
parser.add_argument("--stop-log", help="append the role when told to stop")
parser.add_argument("--grandchild", action="store_true", help="start a process that leaves the session")
parser.add_argument("--finds-nobody", help="as a frontend, while this file exists; removed at the start")
parser.add_argument("--mute", type=int, default=0, help="how often it does not say what it is")
parser.add_argument("--entering", type=int, default=0, help="how often its adapters are still to come")
parser.add_argument("--role", default="dummy")
args = parser.parse_args()

DESCRIPTION = {
    "status": "ok",
    "instance": "2a",
    "engines": [
        {
            "role": args.role,
            "dtype": "float32",
            "device": "cpu",
            "ranks": [
                {"layers": 5, "kv_tokens": 4096, "bytes_per_token": 1024, "host_tokens": 8192},
                {"layers": 3, "kv_tokens": 4096, "bytes_per_token": 512, "host_tokens": 8192},
            ],
            "bootstrap": "127.0.0.1:4242",
        }
    ],
}
first_asked: list[float] = []
if args.sick_if and Path(args.sick_if).exists():
    args.sick_after = 0.0


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        first_asked[1:] = [time.monotonic()]
        sick = first_asked[-1] - first_asked[0] >= args.sick_after
        if self.path == "/v1/models":
            alone = args.finds_nobody and Path(args.finds_nobody).exists()
            body = {"data": [] if alone else [{"id": "dummy-model"}]}
        else:
            instances = [{"instance_id": n, "endpoint": "generate"} for n in range(args.workers_known)]
            body = {"instances": instances, "role": args.role, "environment": dict(os.environ)}
        self.send_response(503 if sick else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_POST(self) -> None:
        """It says what any worker does that describes itself."""
        args.mute -= 1
        self.send_response(200 if args.mute < 0 else 500)
        self.end_headers()
        description = {**DESCRIPTION, "entering": args.mute < 0 and args.entering > 0}
        args.entering -= args.mute < 0
        self.wfile.write(json.dumps(description if args.mute < 0 else {}).encode())

    def log_message(self, *_: object) -> None:
        pass


def on_term(*_: object) -> None:
    if args.stop_log:
        with open(args.stop_log, "a") as file:
            file.write(f"{args.role}\n")
    if args.leaves:
        print("LEAVING: told to stop", flush=True)
    if args.drains:
        args.sick_after = 0.0
    if seconds := args.drains or args.leaves:
        threading.Timer(seconds, os._exit, (0,)).start()
    elif not args.ignore_term:
        os._exit(0)


signal.signal(signal.SIGTERM, on_term)
if args.finds_nobody:
    Path(args.finds_nobody).unlink(missing_ok=True)
if args.say:
    print(args.say, flush=True)
if args.grandchild:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if args.exit_code is not None:
    marker = Path(args.once) if args.once else None
    if marker is None or not marker.exists():

        def leave() -> None:
            time.sleep(args.exit_after)
            if marker is not None:
                marker.touch()
            os._exit(args.exit_code)

        threading.Thread(target=leave, daemon=True).start()
port = args.http_port or int(os.environ["DYN_SYSTEM_PORT"])
ThreadingHTTPServer((args.http_host, port), Answer).serve_forever()
