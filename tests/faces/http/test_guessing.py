"""Wrong passwords: they are logged and slow each other down, and lock no other address out. Time is virtual."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import threading
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import Request

from headgate.clock import SECOND, sleep
from headgate.http import BasicAuth, BearerAuth, CallbackAuth, User, WrongCredential, dashboard
from headgate.http.auth import Auth
from headgate.http.failures import LONGEST_DELAY, LONGEST_TURN, MOST_CHECKS, MOST_REMEMBERED, SignInFailures
from headgate.password_hash import PasswordHash
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.http.stage import client, make_app, problem
from tests.until import until

ADDRESS = "203.0.113.7"
RIGHT = "a right password"


def auth() -> BasicAuth:
    return BasicAuth(ada=("admin", RIGHT), otto=("operator", RIGHT))


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


class DashboardClient:
    """Asks one dashboard, as different people at different addresses."""

    def __init__(self, clock: VirtualClock, auth: Auth, proxies: tuple[str, ...] = ()) -> None:
        self.clock = clock
        self.app = make_app(clock=clock)
        self.site = dashboard(self.app, auth=auth, clock=clock, trusted_proxies=proxies)

    async def status(
        self, name: str, password: str, *, address: str = ADDRESS, headers: dict[str, str] | None = None
    ) -> tuple[int, float]:
        """The answer, and how many seconds it took."""
        began_at = self.clock.monotonic()
        async with client(self.site, peer=address) as caller:
            answer = await caller.get("/api/v1/session", headers=basic(name, password) | (headers or {}))
        return answer.status_code, (self.clock.monotonic() - began_at) / SECOND

    async def guess(self, count: int, *, name: str = "ada") -> list[float]:
        """So many wrong passwords, one after the other; the seconds that each took."""
        took = []
        for number in range(count):
            status, seconds = await self.status(name, f"guess {number}")
            assert status == 401
            took.append(seconds)
        return took


def in_virtual_time(
    test: Callable[[DashboardClient], Awaitable[None]], make: Callable[[], Auth] = auth, proxies: tuple[str, ...] = ()
) -> None:
    async def main(clock: VirtualClock) -> None:
        it = DashboardClient(clock, make(), proxies)
        async with it.app.open():
            await test(it)

    run_virtual(main)


def test_each_wrong_password_of_a_user_from_an_address_takes_longer_up_to_a_bound() -> None:
    async def test(it: DashboardClient) -> None:
        took = await it.guess(10)
        assert took[:3] == [0, 0, 0]
        assert took[3:] == pytest.approx([0.5, 1, 2, 4, 4, 4, 4], abs=0.01)

    in_virtual_time(test)


def test_a_right_password_is_accepted_after_any_number_of_wrong_ones() -> None:
    async def test(it: DashboardClient) -> None:
        await it.guess(100)
        status, seconds = await it.status("ada", RIGHT)
        assert status == 200
        assert seconds <= LONGEST_DELAY + 0.01

    in_virtual_time(test)


def test_guesses_at_the_same_time_are_answered_one_after_another() -> None:
    async def test(it: DashboardClient) -> None:
        async def guess(number: int) -> int:
            """Guess without end, and return how many passwords were checked within a minute."""
            checked = 0
            while it.clock.monotonic() < ends_at:
                status, seconds = await it.status("ada", f"guess {number} {checked}")
                checked += status == 401
                assert status in (401, 503)
                assert seconds <= LONGEST_TURN
                await sleep(it.clock, 2)
            return checked

        ends_at = it.clock.monotonic() + 60 * SECOND
        counted = sum(await asyncio.gather(*(guess(number) for number in range(50))))
        # As many as one after the other: three at once, three more in 3.5 s, and then one every four seconds.
        assert counted <= 6 + (60 + LONGEST_TURN) / LONGEST_DELAY

    in_virtual_time(test)


def test_a_flood_of_guesses_delays_no_other_address_and_the_same_one_until_it_ends() -> None:
    async def test(it: DashboardClient) -> None:
        flood = [asyncio.ensure_future(it.status("ada", f"guess {number}")) for number in range(200)]
        await asyncio.sleep(0)
        assert await it.status("ada", RIGHT, address="203.0.113.8") == (200, 0)
        assert await it.status("otto", RIGHT) == (200, 0)
        async with client(it.site, peer=ADDRESS) as caller:
            refused = await caller.get("/api/v1/session", headers=basic("ada", RIGHT))
        assert (refused.status_code, problem(refused)) == (503, "too_many_sign_ins")
        assert refused.headers["Retry-After"] == "4"
        statuses = [status for status, _ in await asyncio.gather(*flood)]
        assert set(statuses) == {401, 503}
        assert statuses.count(401) < 15
        assert await it.status("ada", RIGHT) == (200, LONGEST_DELAY)

    in_virtual_time(test)


async def test_few_passwords_of_an_address_are_hashed_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    may_end = threading.Event()

    def matches(stored: PasswordHash, password: str) -> bool:
        hashed.append(password)
        may_end.wait()
        return password == RIGHT

    users = BasicAuth(ada=("admin", str(PasswordHash.of(RIGHT))))
    monkeypatch.setattr(PasswordHash, "matches", matches)
    app = make_app()
    site = dashboard(app, auth=users)
    async with app.open(), client(site, peer=ADDRESS) as attacker, client(site, peer="203.0.113.8") as ada:
        try:
            # A name for each, so that the turns of a user do not bound them.
            flood = [
                asyncio.ensure_future(attacker.get("/api/v1/session", headers=basic(f"user {number}", "guess")))
                for number in range(200)
            ]
            repeated = [
                asyncio.ensure_future(ada.get("/api/v1/session", headers=basic("ada", RIGHT))) for _ in range(50)
            ]
            await until(lambda: sum(each.done() for each in flood) == 200 - MOST_CHECKS)
        finally:
            may_end.set()
        statuses = [answer.status_code for answer in await asyncio.gather(*flood)]
        assert (statuses.count(401), statuses.count(503)) == (MOST_CHECKS, 200 - MOST_CHECKS)
        # A program that asks much at once is not refused, and its password is hashed once.
        assert [answer.status_code for answer in await asyncio.gather(*repeated)] == [200] * 50
        assert hashed.count(RIGHT) == 1


def test_another_user_and_another_address_are_not_delayed() -> None:
    async def test(it: DashboardClient) -> None:
        await it.guess(10)
        assert await it.status("otto", RIGHT) == (200, 0)
        assert await it.status("ada", RIGHT, address="203.0.113.8") == (200, 0)
        # What anybody can write into a header is no other address.
        spoofed = await it.status("ada", "guess", headers={"X-Forwarded-For": "198.51.100.1"})
        assert (spoofed[0], round(spoofed[1], 1)) == (401, LONGEST_DELAY)

    in_virtual_time(test)


def test_the_address_of_a_guess_is_taken_from_a_trusted_proxy() -> None:
    async def test(it: DashboardClient) -> None:
        for number in range(9):
            # What stands before the last address anybody can have written.
            headers = {"X-Forwarded-For": f"192.0.2.{number}, 203.0.113.7"}
            await it.status("ada", f"guess {number}", address="10.0.0.1", headers=headers)
        slow = await it.status("ada", RIGHT, address="10.0.0.1", headers={"X-Forwarded-For": "192.0.2.99, 203.0.113.7"})
        assert (slow[0], round(slow[1], 1)) == (200, LONGEST_DELAY)
        other = await it.status("ada", RIGHT, address="10.0.0.1", headers={"X-Forwarded-For": "203.0.113.8"})
        assert other == (200, 0)

    in_virtual_time(test, proxies=("10.0.0.1",))


def test_delays_reveal_nothing_about_passwords_guessed_concurrently() -> None:
    async def test(it: DashboardClient) -> None:
        await it.guess(10)
        guesses = [f"another {number}" for number in range(20)]
        guesses[3] = RIGHT
        answers = await asyncio.gather(*(it.status("ada", guess) for guess in guesses))
        assert [status for status, _ in answers] == [401] * 3 + [200] + [401] + [503] * 15
        assert [round(seconds, 1) for _, seconds in answers[:5]] == [LONGEST_DELAY * turn for turn in range(1, 6)]
        # What is refused is refused unseen.
        again = await it.guess(10)
        assert again[:3] == [0, 0, 0]
        guesses[3], guesses[7] = "a third", RIGHT
        answers = await asyncio.gather(*(it.status("ada", guess) for guess in guesses))
        assert [status for status, _ in answers] == [401] * 5 + [503] * 15

    in_virtual_time(test)


def test_a_name_beside_a_guessed_token_gives_the_guess_no_turn_of_its_own() -> None:
    token = "a token of sixteen characters"

    async def test(it: DashboardClient) -> None:
        for number in range(10):
            assert (await it.status(f"user {number}", f"guess {number}"))[0] == 401
        guesses = [f"another {number}" for number in range(20)]
        guesses[7] = token
        answers = await asyncio.gather(*(it.status(f"user {guess}", guess) for guess in guesses))
        assert [status for status, _ in answers] == [401] * 5 + [503] * 15
        async with client(it.site, peer=ADDRESS) as caller:
            guesses = [f"of a form {number}" for number in range(20)]
            guesses[7] = token
            forms = ({"name": f"user {guess}", "secret": guess, "place": ""} for guess in guesses)
            sent = await asyncio.gather(*(caller.post("/login", data=form) for form in forms))
        assert [answer.status_code for answer in sent] == [401] * 5 + [503] * 15
        assert await it.status("deploy", token) == (200, 0)

    in_virtual_time(test, lambda: BearerAuth({token: User("deploy")}))


def test_a_right_password_or_ten_quiet_minutes_end_the_delay() -> None:
    async def test(it: DashboardClient) -> None:
        await it.guess(10)
        await it.status("ada", RIGHT)
        assert await it.guess(3) == [0, 0, 0]
        await it.guess(10)
        await sleep(it.clock, 600)
        assert await it.guess(3) == [0, 0, 0]

    in_virtual_time(test)


def test_the_same_wrong_password_counts_once() -> None:
    async def test(it: DashboardClient) -> None:
        for _ in range(30):
            assert await it.status("ada", "of yesterday") == (401, 0)
        assert await it.status("ada", RIGHT) == (200, 0)

    in_virtual_time(test)


def test_the_guesses_that_a_callback_refuses_are_slowed_down_and_its_sessions_are_not() -> None:
    def who(request: Request) -> User | None:
        if "x-password" in request.headers:
            raise WrongCredential(name="ada")
        return User("ada", "admin")

    async def test(it: DashboardClient) -> None:
        async with client(it.site, peer=ADDRESS) as caller:
            for _ in range(9):
                began_at = it.clock.monotonic()
                assert (await caller.get("/api/v1/session", headers={"X-Password": "guess"})).status_code == 401
            assert (it.clock.monotonic() - began_at) / SECOND == pytest.approx(LONGEST_DELAY, abs=0.01)
            began_at = it.clock.monotonic()
            assert (await caller.get("/api/v1/session")).status_code == 200
            assert it.clock.monotonic() == began_at

    in_virtual_time(test, lambda: CallbackAuth(who))


def test_each_wrong_password_is_logged_and_no_name_forges_a_line(caplog: pytest.LogCaptureFixture) -> None:
    name = "ada\nWARNING all is well\x1b[2J\u202e"

    async def test(it: DashboardClient) -> None:
        await it.status(name, "a wrong password")
        async with client(it.site, peer=ADDRESS) as caller:
            form = {"name": "ada", "secret": "another wrong one", "place": ""}
            assert (await caller.post("/login", data=form)).status_code == 401

    in_virtual_time(test)
    assert [record.getMessage() for record in caplog.records] == [
        r"failed sign-in of 'ada\nWARNING all is well\x1b[2J\u202e' from '203.0.113.7'",
        "failed sign-in of 'ada' from '203.0.113.7'",
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "wrong" not in caplog.text


def test_a_flood_of_guesses_floods_no_log_and_is_counted_there(caplog: pytest.LogCaptureFixture) -> None:
    async def test(it: DashboardClient) -> None:
        await asyncio.gather(*(it.status(f"user {number}", "guess") for number in range(500)))
        await sleep(it.clock, 61)

    in_virtual_time(test)
    received = [record.getMessage() for record in caplog.records]
    assert len(received) == 21
    assert received[-1] == "480 more such lines were left out in the last 60 s"
    assert all(re.fullmatch(r"failed sign-in of 'user \d+' from '203\.0\.113\.7'", line) for line in received[:-1])


def test_the_memory_for_guesses_is_bounded() -> None:
    async def main(clock: VirtualClock) -> None:
        failures = SignInFailures(clock)
        for number in range(MOST_REMEMBERED + 500):
            failures.add(ADDRESS, f"user {number}" * 100, f"guess {number}" * 100)
        for number in range(100):
            failures.add(ADDRESS, "ada", f"guess {number}")
        assert len(failures) == MOST_REMEMBERED
        assert failures.delay(ADDRESS, "ada") == LONGEST_DELAY

    run_virtual(main)
