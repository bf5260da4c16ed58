"""What is remembered of calls: those in flight, and the last ones that have finished, for a while."""

import asyncio
from types import SimpleNamespace

import pytest

from rolltap.idempotency import SameCalls


def key(number, idempotency_key=""):
    return ("session", "/path", bytes([number % 256, number // 256]), idempotency_key)


def call(*, succeeded=True, given_up=False):
    return SimpleNamespace(succeeded=succeeded, given_up=given_up)


def finished(same, number, **how):
    one = call(**how)
    same.begun(key(number), one)
    same.ended(key(number), one)
    return one


@pytest.mark.parametrize("retry", [False, True])
def test_one_in_flight_is_found_by_any_request_of_its_key(retry):
    same, one = SameCalls(), call()
    same.begun(key(0), one)
    assert same.find(key(0), retry=retry) is one
    for other in (key(1), key(0, "mine"), ("other", *key(0)[1:]), (key(0)[0], "/other", *key(0)[2:])):
        assert same.find(other, retry=retry) is None


def test_one_that_has_finished_is_found_by_a_retry_alone():
    same = SameCalls()
    one = finished(same, 0)
    assert same.find(key(0), retry=True) is one
    assert same.find(key(0), retry=False) is None


def test_one_that_failed_or_was_given_up_is_found_by_nobody():
    same = SameCalls()
    finished(same, 0, succeeded=False)
    left = call(succeeded=False, given_up=True)
    same.begun(key(1), left)
    for number in (0, 1):
        assert same.find(key(number), retry=True) is None


def test_the_end_of_one_that_was_given_up_leaves_the_next_in_flight():
    same, left, again = SameCalls(), call(succeeded=False, given_up=True), call()
    same.begun(key(0), left)
    same.begun(key(0), again)
    same.ended(key(0), left)
    assert same.find(key(0), retry=False) is again


def test_no_more_than_so_many_are_remembered():
    same = SameCalls(most=3)
    calls = [finished(same, number) for number in range(10)]
    found = [same.find(key(number), retry=True) for number in range(10)]
    assert found == [None] * 7 + calls[7:]


async def test_one_is_forgotten_when_its_time_is_over():
    same = SameCalls(window_s=0.05)
    one = finished(same, 0)
    assert same.find(key(0), retry=True) is one
    await asyncio.sleep(0.06)
    assert same.find(key(0), retry=True) is None
    finished(same, 1)
    assert [*same._finished] == [key(1)]
