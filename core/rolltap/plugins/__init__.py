"""The plugin manager."""

from rolltap.plugins.manager import Plugins
from rolltap.plugins.records import PluginRecord
from rolltap.plugins.rules import HOOKS

__all__ = ["HOOKS", "PluginRecord", "Plugins"]
