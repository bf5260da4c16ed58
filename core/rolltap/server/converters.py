"""The converters of the served dialects, and which of them a request's client speaks."""

from aiohttp import web

from rolltap.bases.converters import MessageConverter
from rolltap.errors import PluginError
from rolltap.server.state import CONVERTERS, DIALECTS, PLUGINS


async def converter_for(app: web.Application, dialect: str) -> MessageConverter:
    """The dialect's converter, asked for once. Raises `PluginError` where no plugin has one."""
    known = app[CONVERTERS]
    if dialect not in known:
        found = await app[PLUGINS].call_first("message_converter", dialect=dialect)
        if found is None:
            raise PluginError(f"no plugin converts the dialect {dialect!r}; `rolltap plugins` shows why")
        known[dialect] = found
    return known[dialect]


async def recognised(request: web.Request) -> MessageConverter | None:
    """The converter whose clients this request, for none of its routes, comes from by its path and headers."""
    for dialect in request.app[DIALECTS]:
        converter = await converter_for(request.app, dialect)
        if converter.recognises(request.path, request.headers):
            return converter
    return None
