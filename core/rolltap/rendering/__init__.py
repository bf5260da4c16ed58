"""From messages to token ids, and from token ids to text: templates, turn boundaries, incremental decoding."""

from rolltap.rendering.detokenizer import Detokenizer
from rolltap.rendering.probes import Finding, probe
from rolltap.rendering.renderer import Rendered, Renderer
from rolltap.rendering.stop import StopStrings

__all__ = ["Detokenizer", "Finding", "Rendered", "Renderer", "StopStrings", "probe"]
