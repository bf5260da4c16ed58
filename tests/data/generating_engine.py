"""The scripted vLLM server as a process that rolltap launches in vLLM's place: it generates slowly, and has a worker.

ENGINE_IDS names the ids that it answers with, the last of which ends the turn; the folder of `scripted_vllm` must be on
its path.
"""

import argparse
import os
import subprocess
import sys

from aiohttp import web

from scripted_vllm import Choice, ScriptedVLLM


async def healthy(request: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ids = [int(word) for word in os.environ["ENGINE_IDS"].split()]
    engine = ScriptedVLLM(
        [Choice([(token, -0.5) for token in ids])],
        model=args.served_model_name,
        max_model_len=4096,
        pause=0.03,
    )
    app = engine.app()
    app.router.add_get("/health", healthy)
    web.run_app(app, host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    main()
