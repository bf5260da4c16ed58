"""Real Redis servers on free ports of this machine: one, or a Cluster of three."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

import redis


def free_port() -> int:
    """A port that nobody uses, nor the one that a Cluster's node talks to others on."""
    while True:
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port > 55535:
                continue
            try:
                bus.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            return port


class RedisServer:
    """One process, with a folder of its own that outlives it."""

    def __init__(self, folder: Path, *, cluster: bool = False, options: tuple[str, ...] = ()) -> None:
        program = shutil.which("redis-server")
        assert program, "these tests need redis-server (Debian's package has that name)"
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self._command += [
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--loglevel",
            "warning",
        ]
        if cluster:
            self._command += ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
        self._command += options
        self._log = folder / "log"
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        self.wait()

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=5)

    def wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + 20
        while True:
            try:
                with self.client() as client:
                    client.ping()
            except redis.RedisError:
                assert self.process.poll() is None, self._log.read_text()
                assert time.monotonic() < until, self._log.read_text()
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class RedisServers:
    """A server, or a Cluster, for as long as the context lasts."""

    def __init__(self, folder: Path, *, cluster: bool = False, options: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.nodes = [
            RedisServer(folder / str(number), cluster=cluster, options=options)
            for number in range(3 if cluster else 1)
        ]
        self.url = self.nodes[0].url

    def __enter__(self) -> "RedisServers":
        if self.cluster:
            try:
                self._join()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()

    def _join(self) -> None:
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "0", "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        until = time.monotonic() + 30
        for node in self.nodes:
            with node.client() as client:
                while client.cluster("info")["cluster_state"] != "ok":
                    assert time.monotonic() < until, "the Cluster does not come up"
                    time.sleep(0.05)
