"""Server-sent events, read from bytes as they come."""


class EventReader:
    """Cuts an event stream into its events; only their data counts.

    Bytes may be cut anywhere. A line of any length is read in time proportional to its length.
    """

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._unfinished: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that these bytes complete."""
        first, *others = chunk.split(b"\n")
        self._unfinished.append(first)
        if not others:
            return []
        lines = [b"".join(self._unfinished) if len(self._unfinished) > 1 else first, *others[:-1]]
        self._unfinished = [others[-1]]
        return self._events(lines)

    def finish(self) -> list[bytes]:
        """The data of an event that the stream's end leaves without the empty line after it."""
        return self._events([b"".join(self._unfinished), b""])

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip(b" \r"))
            elif line in {b"", b"\r"}:
                if data := self._data[0] if len(self._data) == 1 else b"\n".join(self._data):
                    events.append(data)
                self._data = []
            elif line.startswith(b"error:"):  # llama.cpp's own way to end a stream that failed
                self._data.append(b'{"error":' + line[6:].strip(b" \r") + b"}")
        return events
