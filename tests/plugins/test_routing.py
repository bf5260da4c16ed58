"""Sticky, least loaded, healthy."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltap import ChatBackend, ChatRequest, SessionInfo
from rolltap.backend_handle import BackendHandle
from rolltap_plugins import routing


class Never(ChatBackend):
    async def chat(self, request):
        raise NotImplementedError
        yield


def handles(count, model="tiny"):
    return [BackendHandle(Never(), name=f"b{at}", kind="never", model=model).view for at in range(count)]


def session(uuid="s"):
    return SessionInfo(uuid=uuid, model_name="tiny", tool_parser="hermes")


def busy(view, count):
    """Have the backend answer so many requests."""
    view._handle.in_flight = count


def cool_down(handle, seconds=60.0):
    handle._handle._retry_at = time.monotonic() + seconds


@pytest.fixture
def router():
    return routing.StickyRouter()


def test_hook_chooses_one_of_the_backends():
    backends = handles(2)
    assert routing.select_backend(ChatRequest(), session("hook"), backends) in backends


def test_least_in_flight_is_chosen(router):
    first, second, third = handles(3)
    for handle, count in zip((first, second, third), (3, 1, 2), strict=True):
        busy(handle, count)
    assert router.select(None, [first, second, third]) is second


def test_idle_backends_share_new_sessions_evenly(router):
    backends = handles(3)
    chosen = [router.select(session(str(at)), backends).name for at in range(6)]
    assert chosen == ["b0", "b1", "b2", "b0", "b1", "b2"]


def test_session_stays_though_another_is_less_loaded(router):
    first, second = handles(2)
    assert router.select(session(), [first, second]) is first
    busy(first, 10)
    assert router.select(session(), [second, first]) is first
    assert router.select(None, [first, second]) is second


def test_session_of_two_models_has_a_backend_of_each(router):
    tiny, big = handles(2), handles(2, model="big")
    router.select(session(), tiny)
    busy(tiny[1], 1)
    busy(big[0], 1)
    assert router.select(session(), big) is big[1]
    assert router.select(session(), tiny) is tiny[0]


def test_unhealthy_backend_is_left_out_and_the_session_moves_for_good(router):
    first, second = backends = handles(2)
    assert router.select(session(), backends) is first
    cool_down(first)
    assert router.select(session(), backends) is second
    first._handle._retry_at = 0.0
    assert router.select(session(), backends) is second


def test_backend_is_tried_again_once_its_cool_down_is_over(router):
    first, second = backends = handles(2)
    cool_down(first)
    assert router.select(None, backends) is second
    cool_down(first, -1)
    assert router.select(None, backends) is first


def test_if_none_is_healthy_the_one_that_is_ready_first(router):
    first, second = backends = handles(2)
    cool_down(first, 60)
    cool_down(second, 30)
    assert router.select(session(), backends) is second


def test_memory_is_bounded_and_forgets_the_session_unused_longest():
    router = routing.StickyRouter(remembered=2)
    first, second = backends = handles(2)
    assert router.select(session("a"), backends) is first
    assert router.select(session("b"), backends) is second
    assert router.select(session("a"), backends) is first
    router.select(session("c"), backends)
    busy(first, 9)
    assert router.select(session("a"), backends) is first
    busy(second, 9)
    busy(first, 0)
    assert router.select(session("b"), backends) is first


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6),
    st.lists(st.sampled_from(["a", "b", None]), max_size=8),
)
def test_choice_is_always_healthy_where_any_is(states, asked):
    router = routing.StickyRouter()
    backends = handles(len(states))
    for handle, (in_flight, ill) in zip(backends, states, strict=True):
        busy(handle, in_flight)
        if ill:
            cool_down(handle)
    for uuid in asked:
        chosen = router.select(session(uuid) if uuid else None, backends)
        assert chosen.healthy or not any(handle.healthy for handle in backends)
