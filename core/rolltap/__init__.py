"""rolltap: a plugin-based middleware between any LLM agent and any model.

It records every rollout as exact token ids, loss masks and logprobs. What is public:

- `rolltap`: what a plugin implements and is handed: bases, values, errors, the marker; and `create_app`.
- `rolltap.parsing`: the toolkit for parsers of tool calls and thinking.
- `rolltap.record`: the entries of a session's log, nodes, and how they are stored.
- `rolltap.testing`: what plugin authors test with.
- `rolltap.client`: for trainers.
"""

from rolltap.bases.backends import SAMPLING_PARAMETERS, Backend, BackendView, PauseMode, TokenBackend
from rolltap.bases.converters import ErrorReply, MessageConverter, ReadBefore, Replies, StreamEncoder
from rolltap.bases.exports import Export, ExportFile, ExportFormat, ExportOptions, json_line
from rolltap.bases.parsers import Reasoning, ReasoningParser, ToolParser
from rolltap.bases.server import Server
from rolltap.bases.stores import Store
from rolltap.config.options import read_options
from rolltap.errors import (
    BadRequest,
    ConfigError,
    ErrorInfo,
    FormatError,
    NotFound,
    Overloaded,
    PluginError,
    RequestError,
    RolltapError,
    StoreError,
    Unreachable,
    Unsupported,
    UpstreamError,
)
from rolltap.hookspecs import hookimpl
from rolltap.in_process import ChatBackend
from rolltap.parsing.json_parsing import JsonToolParser
from rolltap.parsing.tag_parsing import TagToolParser
from rolltap.parsing.tag_reasoning import TagReasoningParser
from rolltap.server.app import create_app
from rolltap.server.dialects import add_dialect
from rolltap.types.chat import (
    ChatRequest,
    Content,
    FilePart,
    ImagePart,
    Message,
    Part,
    Role,
    Sampling,
    TextPart,
    ToolCall,
    ToolChoice,
)
from rolltap.types.frozen import FrozenDict, FrozenList, frozen, thawed
from rolltap.types.generation import (
    ChatDelta,
    Choice,
    Completion,
    FinishReason,
    PromptToken,
    TokenDelta,
    TokenLogprob,
    TokenRequest,
    ToolCallDelta,
    Usage,
)
from rolltap.types.in_process import BackendResponse, StreamEvent
from rolltap.types.ledger import SessionInfo, SessionSummary
from rolltap.types.nodes import NodeView, TreeView

__version__ = "0.1.0"

__all__ = [
    "SAMPLING_PARAMETERS",
    "Backend",
    "BackendResponse",
    "BackendView",
    "BadRequest",
    "ChatBackend",
    "ChatDelta",
    "ChatRequest",
    "Choice",
    "Completion",
    "ConfigError",
    "Content",
    "ErrorInfo",
    "ErrorReply",
    "Export",
    "ExportFile",
    "ExportFormat",
    "ExportOptions",
    "FilePart",
    "FinishReason",
    "FormatError",
    "FrozenDict",
    "FrozenList",
    "ImagePart",
    "JsonToolParser",
    "Message",
    "MessageConverter",
    "NodeView",
    "NotFound",
    "Overloaded",
    "Part",
    "PauseMode",
    "PluginError",
    "PromptToken",
    "ReadBefore",
    "Reasoning",
    "ReasoningParser",
    "Replies",
    "RequestError",
    "Role",
    "RolltapError",
    "Sampling",
    "Server",
    "SessionInfo",
    "SessionSummary",
    "Store",
    "StoreError",
    "StreamEncoder",
    "StreamEvent",
    "TagReasoningParser",
    "TagToolParser",
    "TextPart",
    "TokenBackend",
    "TokenDelta",
    "TokenLogprob",
    "TokenRequest",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "ToolParser",
    "TreeView",
    "Unreachable",
    "Unsupported",
    "UpstreamError",
    "Usage",
    "__version__",
    "add_dialect",
    "create_app",
    "frozen",
    "hookimpl",
    "json_line",
    "read_options",
    "thawed",
]
