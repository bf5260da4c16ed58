"""The plugin manager."""

from rolltap.plugins.answers import Answer
from rolltap.plugins.manager import Plugins
from rolltap.plugins.records import PluginRecord
from rolltap.plugins.rules import HOOKS, NAMED_HOOKS

__all__ = ["HOOKS", "NAMED_HOOKS", "Answer", "PluginRecord", "Plugins"]
