"""The tool parser "acme", for models that write a call as `<acme>search {"query": "rolltap"}</acme>`."""

from rolltap import TagToolParser, ToolCall
from rolltap.parsing import arguments_from_json


class AcmeToolParser(TagToolParser):
    """Reads a tool's name and its arguments. Streaming and the text around calls are the base's business."""

    open, close = "<acme>", "</acme>"

    def read(self, block: str) -> ToolCall | None:
        """The call between the two marks; None where it is none, and the block stays text."""
        name, _, written = block.strip().partition(" ")
        arguments = arguments_from_json(written or "{}")
        return ToolCall(name, arguments) if name and arguments is not None else None


tool_parser = {"acme": AcmeToolParser}
