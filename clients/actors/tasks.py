"""Tasks that actors are given, and what is done when an actor dies, hangs, or gets nothing to work on."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from clients.actors.client_actor import all_idle
from clients.actors.store import BROUGHT_S, fetched, not_brought, one_line
from raysim.errors import WorkerLost

# Seconds that client actors may take to say whether they are at work.
ANSWER_S = 30.0
# Times that actors may be done with nothing for as long as is put up with.
HANGS = 4
# Seconds between attempts to reach an actor whose process has died: it takes calls again once it was started anew, and
# if its node has gone, Ray may take half a minute to find that out.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0)
# Seconds that an actor may take to start, if no more are asked for.
START_S = 600.0


@dataclass(eq=False)
class Task:
    """Work that has been given to an actor.

    Attributes:
        give: gives it to an actor, and returns the refs of its results.
        actor: who has it.
        refs: of the last time that it was given.
        hangs: times that its actor was ended since nothing was heard of it.
    """

    give: Callable[[Any], list[Any]]
    actor: Any
    refs: list[Any] = field(init=False)
    hangs: int = 0

    def __post_init__(self) -> None:
        self.again()

    def again(self) -> None:
        """Gives it again."""
        self.refs = self.give(self.actor)


@dataclass(frozen=True)
class Supervisor:
    """Waits for tasks, and gives them again where that helps.

    Attributes:
        timeout_s: how long no actor may be done with anything.
        retries: times that a task is given again to an actor that was started anew, after the one that had it died or
            was ended. Clients keep nothing in actors and draw nothing there: a task gives the same bits each time.
    """

    timeout_s: float
    retries: int

    def result(self, task: Task) -> Any:
        """Returns a task's first result once it is there. The task is given again when its actor dies or has gone.

        Raises WorkerLost where that does not help, and what the task raised.
        """
        for tries in itertools.count(1):
            try:
                return fetched(self.ready([task]).refs[0])
            except RayActorError as error:
                if tries - task.hangs > self.retries:
                    raise WorkerLost(
                        f"work was lost {tries} times, the last time with its process: {one_line(error)}"
                    ) from error
                self.reach(task.actor)
                task.again()
        raise AssertionError("it counts for ever")

    def reach(self, actor: Any, within_s: float = START_S) -> None:
        """Waits until an actor takes calls. Raises WorkerLost where it does not."""
        for pause_s in (*PAUSES_S, None):
            try:
                ray.get(actor.ready.remote(), timeout=within_s)
            except (RayActorError, GetTimeoutError) as error:
                if getattr(error, "actor_init_failed", False):
                    raise WorkerLost(f"a client actor cannot start: {one_line(error)}") from error
                if isinstance(error, GetTimeoutError):
                    raise WorkerLost(
                        "a client actor has not started in time; look at what the cluster's nodes have free, and raise "
                        "ray.wait_s for more of it"
                    ) from error
                if pause_s is None:
                    raise WorkerLost(f"a client actor that died cannot be reached: {one_line(error)}") from error
                time.sleep(pause_s)
            else:
                return

    def ready(self, tasks: Sequence[Task]) -> Task:
        """Returns a task that is done or has failed. While none is, actors are ended and started anew now and then.

        Raises WorkerLost where that does not help, and StoreFull where what they are to work on does not reach them.
        """
        by_ref, since = {task.refs[0]: task for task in tasks}, time.monotonic()
        look_s = min(self.timeout_s, BROUGHT_S)
        while True:
            arrived, _ = ray.wait(list(by_ref), num_returns=1, timeout=look_s)
            if not arrived and self._starved(tasks):
                # What was done in the meantime is told of a moment later than its actor is seen to be idle.
                arrived, _ = ray.wait(list(by_ref), num_returns=1, timeout=ANSWER_S)
                if not arrived:
                    raise not_brought("what client actors are to work on", look_s)
            if arrived:
                return by_ref[arrived[0]]
            if time.monotonic() - since < self.timeout_s:
                continue
            since = time.monotonic()
            for task in tasks:
                task.hangs += 1
            if max(task.hangs for task in tasks) == HANGS:
                raise WorkerLost(
                    f"client actors were done with nothing in {self.timeout_s:g} s, {HANGS} times, and were started "
                    "anew in between; look for what blocks in the problem's code, or raise clients.timeout_s"
                )
            for actor in {task.actor for task in tasks}:
                ray.kill(actor, no_restart=False)

    def _starved(self, tasks: Sequence[Task]) -> bool:
        """Returns True if the actors that have the tasks answer, and none is at work."""
        try:
            # From another process: an actor takes what it is asked from one in order, and from here it waits for that.
            return bool(ray.get(all_idle.remote([task.actor for task in tasks], ANSWER_S), timeout=2 * ANSWER_S))
        except RayError:  # also of a process that could not be started, or was not in time
            return False
