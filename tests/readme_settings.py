"""The README's table of clients: the very lines that people copy, to be used by the tests."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:9100"


def setting(client: str, url: str, session: str, model: str) -> str:
    """The setting for a client, pointed at a server, a session and a model of a test's own."""
    row = re.search(rf"^\| {re.escape(client)} \| `(.+)` \|$", README, re.MULTILINE)
    assert row, f"README.md has no row for {client}"
    line = row[1]
    assert ADDRESS in line
    return line.replace(ADDRESS, url).replace("SESSION", session).replace("MODEL", model)
