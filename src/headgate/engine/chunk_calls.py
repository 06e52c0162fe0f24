"""Chunk calls: collects the attempts of a chunked task, and calls its function once for all of them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor as Pool
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

from headgate.clock import SECOND, Timer
from headgate.engine.charge import AttemptCharge, StartDecision
from headgate.engine.services import Services, WithServices
from headgate.engine.stop_signals import EndsForks
from headgate.errors import PayloadError
from headgate.jobs.job import ClaimedJob, JobError, describe_error
from headgate.shielding import in_thread
from headgate.tasks.context import JobContext, enter_chunk
from headgate.tasks.definition import TaskDefinition


class Member(Protocol):
    """An attempt whose job is handled in a chunk."""

    task: TaskDefinition
    job: ClaimedJob
    charge: AttemptCharge | None
    thread: asyncio.Future[Any] | None

    @property
    def context(self) -> JobContext: ...

    @property
    def start_decision(self) -> StartDecision: ...

    def begin(self) -> None:
        """Note that the handler is called now."""
        ...


class MismatchedResults(PayloadError):
    """A call returned neither None nor a list with one result for each job."""


class CallError:
    """An error of a call, which all its jobs may share: one object, described once.

    Each `raise` adds frames to the traceback of its error, so each job raises it with the traceback of the call: what
    one job costs does not grow with the number of jobs.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self._traceback = error.__traceback__

    def renewed(self) -> BaseException:
        """Return the error with the traceback that it left the call with."""
        return self.error.with_traceback(self._traceback)

    @cached_property
    def described(self) -> JobError:
        return describe_error(self.renewed())


class ChunkAnswer(NamedTuple):
    """The answer of a call for one job: a result or an error. With `is_late` its handler was not called."""

    result: Any = None
    error: CallError | None = None
    is_late: bool = False


class _Place(NamedTuple):
    member: Member
    item: Any
    answer: asyncio.Future[ChunkAnswer]


class _Collecting:
    """The attempts that wait for the call of their function, and then for its answer."""

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.timer: Timer | None = None
        self.call: asyncio.Task[None] | None = None


class ChunkCalls(WithServices):
    """Collects attempts by task. `slots_of` returns how many jobs of a queue can run here: no chunk gets larger.

    `move_late` moves the charges of attempts that start together, if that is later than one of them was charged.
    """

    def __init__(
        self,
        services: Services,
        pool: Pool,
        slots_of: Callable[[str], int],
        move_late: Callable[[Sequence[Any]], Awaitable[None]],
    ) -> None:
        super().__init__(services)
        self._pool = pool
        self._slots_of = slots_of
        self._move_late = move_late
        # Calls are made in the context of the node, not in that of the attempt that happens to be the last.
        self._context = contextvars.copy_context()
        # By the task; if a limit counts its calls, also by the lane, so that all jobs of a call have the same key.
        self._collecting: dict[str, _Collecting] = {}

    async def join(self, member: Member, item: Any, queue: str) -> ChunkAnswer:
        """Return what the call that handles this attempt among others answers for it.

        An attempt that is cancelled leaves the chunk; if all have left, the call is cancelled. Those that have left
        keep their slots and their permits until the call has ended.
        """
        name, chunk = member.task.name, member.task.chunk
        assert chunk is not None, f"{name!r} is no chunked task"
        share = member.job.call
        if share is not None:
            name = f"{name}:{share.lane or share.leader}"
        mine = self._collecting.setdefault(name, _Collecting())
        place = _Place(member, item, asyncio.get_running_loop().create_future())
        mine.places.append(place)
        if len(mine.places) >= min(chunk.size, self._slots_of(queue)):
            self._begin(name)
        elif mine.timer is None:
            at = self._clock.monotonic() + round(chunk.wait * SECOND)
            mine.timer = self._clock.call_at(at, partial(self._begin, name))
        try:
            return await place.answer
        except asyncio.CancelledError:
            # By identity: items are the user's, and need not compare.
            mine.places = [each for each in mine.places if each is not place]
            if not mine.places:
                self._abandon(name, mine)
            raise

    def _begin(self, name: str) -> None:
        mine = self._collecting.pop(name)
        if mine.timer is not None:
            mine.timer.cancel()
        loop = asyncio.get_running_loop()
        mine.call = loop.create_task(self._call(mine), name=f"headgate-chunk-{name}", context=self._context.copy())

    def _abandon(self, name: str, mine: _Collecting) -> None:
        if mine.call is not None:
            mine.call.cancel()
            return
        del self._collecting[name]
        if mine.timer is not None:
            mine.timer.cancel()

    async def _call(self, mine: _Collecting) -> None:
        ready: list[_Place] = []
        if any(place.member.start_decision is StartDecision.LATE for place in mine.places):
            await self._move_late([place.member for place in mine.places])
        members = [place.member for place in mine.places]
        on_time = {each.job.id: each for each in members if each.start_decision is StartDecision.ON_TIME}
        leaders = [
            each for each in on_time.values() if each.job.call is not None and each.job.call.leader == each.job.id
        ]
        for place in list(mine.places):
            share = place.member.job.call
            # Without the job that was charged for the call, there is no call.
            if place.member.job.id in on_time and (share is None or share.leader in on_time):
                place.member.begin()
                # The call handles it until it ends: a member that leaves meanwhile keeps its slot and its permits.
                place.member.thread = asyncio.current_task()
                ready.append(place)
            else:
                _answer(place, ChunkAnswer(is_late=True))
        # Those that are late have their answer and cannot leave: the call is cancelled once the others have left.
        mine.places = list(ready)
        if not ready:
            return
        # One of the charges is for this call. The others are for none: jobs of theirs that come later have no leader.
        for index, leader in enumerate(leaders):
            if leader.charge is not None and leader.job.call is not None:
                leader.charge.use_for_call(leader.job.call.limits, is_needed=index == 0)
        try:
            with self._registry.hooks.call_context():
                answers = _answers(await self._run(ready), len(ready), ready[0].member.task.name)
        except BaseException as error:
            # SystemExit as well: raised out of a task it would end the program.
            answers = [ChunkAnswer(error=CallError(error))] * len(ready)
        for place, answer in zip(ready, answers, strict=True):
            _answer(place, answer)

    async def _run(self, ready: Sequence[_Place]) -> Any:
        task = ready[0].member.task
        enter_chunk([place.member.context for place in ready])
        call = partial(task.function, [place.item for place in ready])
        if task.is_async:
            with EndsForks():
                return await self._registry.hooks.for_loop(call())
        call = EndsForks()(partial(contextvars.copy_context().run, call))
        work = in_thread(self._pool, self._registry.hooks.for_thread(call))
        for place in ready:
            # A thread cannot be stopped, and outlives its call.
            place.member.thread = work
        return await asyncio.shield(work)


def _answer(place: _Place, answer: ChunkAnswer) -> None:
    if not place.answer.done():
        place.answer.set_result(answer)


def _answers(results: Any, count: int, task: str) -> list[ChunkAnswer]:
    """Return the answer for each job: None for all, or a list with a result or an exception for each."""
    if results is None:
        return [ChunkAnswer()] * count
    if not isinstance(results, (list, tuple)) or len(results) != count:
        got = f"{len(results)} results" if isinstance(results, (list, tuple)) else f"a {type(results).__name__}"
        wrong = MismatchedResults(
            f"task {task!r} was called for {count} jobs and returned {got}; return None, or a list with a result or an "
            "exception for each job, in their order"
        )
        return [ChunkAnswer(error=CallError(wrong))] * count
    # By identity: several jobs may have the same object.
    errors = {id(each): CallError(each) for each in results if isinstance(each, BaseException)}
    return [
        ChunkAnswer(error=errors[id(each)]) if isinstance(each, BaseException) else ChunkAnswer(result=each)
        for each in results
    ]
