"""rolltap: a plugin-based middleware between any LLM agent and any model.

It records every rollout as exact token ids, loss masks and logprobs. This module is the whole public API.
"""

from rolltap.bases.backends import SAMPLING_PARAMETERS, Backend, BackendHandle, TokenBackend
from rolltap.bases.calls import arguments_from_json, calls_from_json
from rolltap.bases.converters import ErrorReply, MessageConverter, StreamEncoder
from rolltap.bases.exports import Export, ExportedSession, ExportFile, ExportFormat, ExportOptions, json_line
from rolltap.bases.json_parsing import JsonToolParser
from rolltap.bases.json_text import as_json
from rolltap.bases.marks import Marks, mark_pattern
from rolltap.bases.parsing import CallFragment, Reasoning, ReasoningParser, ToolParser
from rolltap.bases.stores import Store
from rolltap.bases.tag_parsing import TagToolParser
from rolltap.bases.tag_reasoning import TagReasoningParser
from rolltap.direct import ChatBackend
from rolltap.errors import (
    BadRequest,
    ConfigError,
    ErrorInfo,
    NotFound,
    Overloaded,
    PluginError,
    RequestError,
    RolltapError,
    Unreachable,
    UpstreamError,
)
from rolltap.hookspecs import hookimpl
from rolltap.server.app import create_app
from rolltap.server.dialects import add_dialect
from rolltap.types.chat import (
    ChatRequest,
    Content,
    ImagePart,
    Message,
    Role,
    Sampling,
    TextPart,
    ToolCall,
    ToolChoice,
)
from rolltap.types.direct import BackendResponse, StreamEvent
from rolltap.types.generation import (
    ChatDelta,
    Choice,
    Completion,
    FinishReason,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from rolltap.types.record import (
    DeliveryChanged,
    Entry,
    NodesRecorded,
    NodeView,
    SessionCreated,
    SessionDeleted,
    SessionInfo,
    decode_entry,
    encode_entry,
)
from rolltap.types.sequences import GeneratedSpan, PackedNode

__version__ = "0.1.0"

__all__ = [
    "SAMPLING_PARAMETERS",
    "Backend",
    "BackendHandle",
    "BackendResponse",
    "BadRequest",
    "CallFragment",
    "ChatBackend",
    "ChatDelta",
    "ChatRequest",
    "Choice",
    "Completion",
    "ConfigError",
    "Content",
    "DeliveryChanged",
    "Entry",
    "ErrorInfo",
    "ErrorReply",
    "Export",
    "ExportFile",
    "ExportFormat",
    "ExportOptions",
    "ExportedSession",
    "FinishReason",
    "GeneratedSpan",
    "ImagePart",
    "JsonToolParser",
    "Marks",
    "Message",
    "MessageConverter",
    "NodeView",
    "NodesRecorded",
    "NotFound",
    "Overloaded",
    "PackedNode",
    "PluginError",
    "Reasoning",
    "ReasoningParser",
    "RequestError",
    "Role",
    "RolltapError",
    "Sampling",
    "SessionCreated",
    "SessionDeleted",
    "SessionInfo",
    "Store",
    "StreamEncoder",
    "StreamEvent",
    "TagReasoningParser",
    "TagToolParser",
    "TextPart",
    "TokenBackend",
    "TokenDelta",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "ToolChoice",
    "ToolParser",
    "Unreachable",
    "UpstreamError",
    "Usage",
    "__version__",
    "add_dialect",
    "arguments_from_json",
    "as_json",
    "calls_from_json",
    "create_app",
    "decode_entry",
    "encode_entry",
    "hookimpl",
    "json_line",
    "mark_pattern",
]
