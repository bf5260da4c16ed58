"""What the application holds while it runs, and what a request carries."""

from aiohttp import web

from rolltap.bases.converters import MessageConverter
from rolltap.bases.server import Server
from rolltap.config import Config
from rolltap.models import Models
from rolltap.pipeline import Pipeline
from rolltap.plugins import Plugins
from rolltap.server.keys import Keys
from rolltap.sessions import Sessions

CONFIG = web.AppKey("CONFIG", Config)
PLUGINS = web.AppKey("PLUGINS", Plugins)
KEYS = web.AppKey("KEYS", Keys)
MODELS = web.AppKey("MODELS", Models)
SESSIONS = web.AppKey("SESSIONS", Sessions)
PIPELINE = web.AppKey("PIPELINE", Pipeline)
CONVERTERS = web.AppKey("CONVERTERS", dict[str, MessageConverter])
DIALECTS = web.AppKey("DIALECTS", list[str])
"""The dialects that have a route, in the order of their registration."""

SERVER = web.AppKey("SERVER", Server)
GUARDED = web.AppKey("GUARDED", set[web.AbstractResource])
"""Resources that need one of the server's keys: those of plugins."""

REQUEST_ID = web.RequestKey("REQUEST_ID", str)
