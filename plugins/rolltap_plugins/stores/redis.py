"""The store "redis": logs that several servers share, each session's in a stream of its own.

Keys, with the prefix `rolltap`: `rolltap:{ID}:log`, a session's stream; `rolltap:{sessions}:order` and `:count`, all
sessions by the number they were given; `rolltap:claim:KEY`. What stands in braces is the hash tag by which a Redis
Cluster spreads the sessions over its nodes; no command touches two tags.

An entry's stream id is `0-SEQ`: Redis itself gives the next number (`XADD … 0-*`, since Redis 7), so that any number of
writers count without gaps. Each entry carries a random token. When the connection breaks before the answer is there,
the append is asked for again, and finds the entry by its token where the first try has kept it.

A new log first lives for a minute only; it stays once it is listed. A server that dies in between leaves nothing.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from rolltap import ConfigError, Store, StoreError, hookimpl, read_options
from rolltap.record import Entry, SessionCreated, decode_entry, encode_entry

log = logging.getLogger(__name__)

KIND = "redis"

_OLDEST = 7
_PAGE = 128
_CONNECTIONS = 64
_UNLISTED_MS = 60_000

_APPEND = """
local entry, token, opens, life, again = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
if again == '1' then
  for _, kept in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 256)) do
    if kept[2][4] == token then return kept[1] end
  end
end
local id
if opens == '1' then
  id = redis.call('XADD', KEYS[1], '0-*', 'entry', entry, 'token', token)
else
  id = redis.call('XADD', KEYS[1], 'NOMKSTREAM', '0-*', 'entry', entry, 'token', token)
end
if id and life > 0 then redis.call('PEXPIRE', KEYS[1], life) end
return id
"""

_LIST = """
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.call('ZADD', KEYS[1], redis.call('INCR', KEYS[2]), ARGV[1])
end
return 1
"""

_Result = TypeVar("_Result")


class Options(Struct, frozen=True, kw_only=True):
    """What `[store]` may say besides its kind."""

    url: str = "redis://127.0.0.1:6379/0"
    cluster: bool = False
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]+$")] = "rolltap"
    ttl_s: Annotated[float, Meta(ge=0)] = 0
    timeout_s: Annotated[float, Meta(gt=0)] = 5
    retry_s: Annotated[float, Meta(ge=0)] = 10


class RedisStore(Store):
    """Keeps entries in Redis 7 or newer, or what speaks its protocol."""

    durable = True
    shared = True

    def __init__(self, options: Options) -> None:
        self._options = options
        self._life_ms = round(options.ttl_s * 1000)
        self._order = f"{options.prefix}:{{sessions}}:order"
        self._count = f"{options.prefix}:{{sessions}}:count"
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._client: Any = None
        self._failing = False

    async def start(self) -> None:
        """See `Store.start`. Raises `ConfigError` where Redis is not to be reached, or too old."""
        self._client = _client(self._options)
        try:
            about = await self._client.info(**({"target_nodes": "random"} if self._options.cluster else {}))
        except _errors() as error:
            await self.close()
            raise ConfigError(
                f"[store] url = {_shown(self._options.url)!r}: Redis does not answer there as it should: {error}. "
                "Start it, or correct the url (and `cluster`, which must be true for a Redis Cluster alone)."
            ) from error
        if self._options.cluster and "redis_version" not in about:
            about = next(iter(about.values()))
        try:
            self._check(about)
        except ConfigError:
            await self.close()
            raise

    def _check(self, about: dict[str, Any]) -> None:
        version = str(about["redis_version"])
        if int(version.partition(".")[0]) < _OLDEST:
            raise ConfigError(
                f"[store] url = {_shown(self._options.url)!r}: this is Redis {version}; the store needs {_OLDEST}.0 or newer"
            )
        if not about.get("aof_enabled"):
            log.warning(
                'Redis keeps no append-only file: when it ends, sessions may be lost; set its "appendonly yes"'
            )
        policy = about.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and about.get("maxmemory"):
            log.warning(
                'Redis drops sessions when its memory is full (maxmemory-policy %s); set "noeviction"', policy
            )

    async def close(self) -> None:
        """See `Store.close`."""
        client, self._client = self._client, None
        if client is None:
            return
        for _ in range(_CONNECTIONS):  # what is under way ends first
            await self._places.acquire()
        for _ in range(_CONNECTIONS):
            self._places.release()
        await client.aclose()

    async def append(self, session: str, entry: Entry) -> int:
        """See `Store.append`."""
        opens = isinstance(entry, SessionCreated)
        key, token = self._log(session), secrets.token_bytes(8)
        data, life = encode_entry(entry), _UNLISTED_MS if opens else self._life_ms
        kept: bytes | None = await self._ask(
            lambda client, again: client.eval(_APPEND, 1, key, data, token, int(opens), life, int(again))
        )
        if kept is None:
            raise LookupError(f"session {session!r} has no log")
        if opens:
            await self._call("eval", _LIST, 2, self._order, self._count, session)
            if self._life_ms:
                await self._call("pexpire", key, self._life_ms)
            else:
                await self._call("persist", key)
        return _seq(kept)

    async def read(self, session: str, after: int = 0) -> Sequence[tuple[int, Entry]]:
        """See `Store.read`. Long logs are fetched in pieces, so that the event loop runs in between."""
        key, found = self._log(session), list[tuple[int, Entry]]()
        while True:
            start = f"(0-{found[-1][0] if found else after}"
            page: list[tuple[bytes, dict[bytes, bytes]]] = await self._call(
                "xrange", key, start, "+", count=_PAGE
            )
            found += ((_seq(number), decode_entry(fields[b"entry"])) for number, fields in page)
            if len(page) < _PAGE:
                return found

    async def sessions(self, *, after: int = 0, limit: int = 1000) -> Sequence[tuple[int, str]]:
        """See `Store.sessions`. Those whose log has expired are taken off the list."""
        found: list[tuple[int, str]] = []
        while len(found) < limit:
            size = limit - len(found)
            page: list[tuple[bytes, float]] = await self._call(
                "zrangebyscore", self._order, f"({after}", "+inf", start=0, num=size, withscores=True
            )
            if not page:
                break
            after = int(page[-1][1])
            listed = [(int(number), name.decode()) for name, number in page]
            there = await self._ask(partial(self._exist, [name for _, name in listed]))
            found += (pair for pair, exists in zip(listed, there, strict=True) if exists)
            gone = [name for (_, name), exists in zip(listed, there, strict=True) if not exists]
            if gone:
                await self._call("zrem", self._order, *gone)
        return found

    async def delete(self, session: str) -> None:
        """See `Store.delete`. The log goes first: an id that is listed without one is taken off the list later."""
        key = self._log(session)
        await self._call("unlink", key)
        await self._call("zrem", self._order, session)

    async def claim(self, key: str, ttl_s: float) -> bool:
        """See `Store.claim`."""
        name, token = f"{self._options.prefix}:claim:{key}", secrets.token_bytes(16)
        life = max(1, round(ttl_s * 1000))

        async def take(client: Any, again: bool) -> bool:
            if await client.set(name, token, nx=True, px=life):
                return True
            return again and await client.get(name) == token

        return await self._ask(take)

    def _log(self, session: str) -> str:
        return f"{self._options.prefix}:{{{session}}}:log"

    async def _exist(self, sessions: Sequence[str], client: Any, _: bool) -> list[int]:
        pipeline = client.pipeline(transaction=False)
        for session in sessions:
            pipeline.exists(self._log(session))
        answers: list[int] = await pipeline.execute()
        return answers

    async def _call(self, command: str, *arguments: Any, **options: Any) -> Any:
        """The answer to a command that may be given twice."""
        return await self._ask(lambda client, _: getattr(client, command)(*arguments, **options))

    async def _ask(self, question: Callable[[Any, bool], Awaitable[_Result]]) -> _Result:
        """Redis' answer. Where the connection fails, the question is asked again, and told so, for `retry_s`."""
        until = time.monotonic() + self._options.retry_s
        for attempt in count():
            try:
                async with self._places:
                    if self._client is None:
                        raise StoreError('the store "redis" is closed')
                    answer = await question(self._client, attempt > 0)
            except _errors() as error:
                pause = min(0.1 * 2**attempt, 1) * random.uniform(0.5, 1)  # noqa: S311 - no secret
                if not isinstance(error, _passing()) or time.monotonic() + pause > until:
                    raise self._failure(error) from error
                await asyncio.sleep(pause)
            else:
                break
        if self._failing:
            self._failing = False
            log.warning('the store "redis" works again')
        return answer

    def _failure(self, error: Exception) -> StoreError:
        """Tells clients what kind of failure it is, and the log, once, what Redis said."""
        if not self._failing:
            self._failing = True
            log.error(
                "the store at %s failed: %s: %s", _shown(self._options.url), type(error).__name__, error
            )
        why = "Redis does not answer" if isinstance(error, _passing()) else "Redis refused the command"
        return StoreError(f'the store "redis" failed: {why} ({type(error).__name__})')


def _client(options: Options) -> Any:
    """A client that never repeats a command by itself: an append would be kept twice."""
    from redis.asyncio import Redis, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return (RedisCluster if options.cluster else Redis).from_url(
        options.url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=options.timeout_s,
        socket_connect_timeout=options.timeout_s,
        protocol=2,
        max_connections=2 * _CONNECTIONS,
    )


def _errors() -> tuple[type[Exception], ...]:
    from redis.exceptions import RedisClusterException, RedisError

    # The client of a Cluster closes connections that other tasks are using; these then find their writer gone.
    return (RedisError, RedisClusterException, OSError, AttributeError)


def _passing() -> tuple[type[Exception], ...]:
    """What passes when Redis is started again, or another node takes over."""
    from redis import exceptions

    return (
        exceptions.BusyLoadingError,
        exceptions.ClusterDownError,
        exceptions.ConnectionError,
        exceptions.MasterDownError,
        exceptions.ReadOnlyError,
        exceptions.RedisClusterException,
        exceptions.TimeoutError,
        exceptions.TryAgainError,
        OSError,
        AttributeError,  # see above
    )


def _seq(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[2])


def _shown(url: str) -> str:
    """The address without its user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _check_url(url: str) -> None:
    if urlsplit(url).scheme not in {"redis", "rediss", "unix"}:
        raise ConfigError(
            f"[store] url = {_shown(url)!r} is no address of a Redis; expected one such as 'redis://127.0.0.1:6379/0', "
            "or 'rediss://…' for TLS"
        )


@hookimpl
def create_store(kind: str, options: dict[str, Any]) -> Store | None:
    """A store of this kind; needs the extra `redis`."""
    if kind != KIND:
        return None
    read = read_options(options, Options, "[store]")
    _check_url(read.url)
    try:
        import redis.asyncio  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'[store] kind = "redis" needs the package redis, which is missing here ({error}); install it with '
            "pip install 'rolltap[redis]'"
        ) from error
    return RedisStore(read)


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"create_store": [KIND]}
