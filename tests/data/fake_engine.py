"""Stands in for vLLM's server where only its life matters: it starts, answers /health, and ends as it is told.

How it behaves is said by FAKE_ENGINE: words of "broken" (ends at once), "stubborn" (ignores SIGTERM), "slow" (never gets
ready). Its own process id and that of a worker it starts are written to the file that FAKE_ENGINE_PIDS names, one line a
start. GET /die ends it, leaving the worker behind.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

MODE = os.environ.get("FAKE_ENGINE", "").split()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/die":
            os._exit(3)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int)
    args, rest = parser.parse_known_args()
    sys.stdout.write(f"INFO 01-01 [fake.py:1] engine of {args.model} with {rest}\n")
    sys.stdout.flush()
    sys.stderr.write("WARNING 01-01 [fake.py:2] beware\n")
    if "broken" in MODE:
        sys.exit("ERROR 01-01 [fake.py:3] no such flag")
    if "stubborn" in MODE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with Path(os.environ["FAKE_ENGINE_PIDS"]).open("a") as pids:
        pids.write(f"{os.getpid()} {worker.pid}\n")
    if "slow" in MODE:
        time.sleep(600)
    HTTPServer((args.host, args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
