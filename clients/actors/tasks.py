"""The tasks of actors, and their supervision: actors may die, hang, or never receive the inputs of a task."""

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
# Times that actors may finish nothing for `timeout_s`; at the last of them the run ends.
HANGS = 4
# Seconds between attempts to reach an actor whose process has died: it takes calls again once it was started anew, and
# if its node has gone, Ray may take half a minute to find that out.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0)
# Seconds that an actor may take to start, unless the caller allows more.
START_S = 600.0


@dataclass(eq=False)
class Task:
    """Work that has been given to an actor.

    Attributes:
        give: submits the work to an actor, and returns the refs of its results.
        actor: the actor that has the task.
        refs: refs of the results, from the last time that the task was given.
        hangs: times that the actor was ended because nothing was heard of it.
    """

    give: Callable[[Any], list[Any]]
    actor: Any
    refs: list[Any] = field(init=False)
    hangs: int = 0

    def __post_init__(self) -> None:
        self.give_again()

    def give_again(self) -> None:
        """Gives the task to its actor again."""
        self.refs = self.give(self.actor)


@dataclass(frozen=True)
class Supervisor:
    """Waits for tasks, and gives them again where that helps.

    Attributes:
        timeout_s: seconds for which no actor may finish anything.
        retries: times that a task is given again to an actor that was started anew, after the one that had it died or
            was ended. Clients keep nothing in actors and draw nothing there: a task gives the same bits each time.
    """

    timeout_s: float
    retries: int

    def result(self, task: Task) -> Any:
        """Returns a task's first result once it is there. The task is given again when its actor dies or has gone.

        Raises WorkerLost where that does not help, and the exception of a task that failed.
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
                task.give_again()
        raise AssertionError("it counts for ever")

    def reach(self, actor: Any, within_s: float = START_S) -> None:
        """Waits until an actor takes calls. Raises WorkerLost where it does not within `within_s`."""
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
        """Returns a task that is done or has failed. Where none is within `timeout_s`, actors are started anew.

        Raises WorkerLost where that does not help, and StoreFull where the inputs of tasks do not reach the actors.
        """
        by_ref, since = {task.refs[0]: task for task in tasks}, time.monotonic()
        look_s = min(self.timeout_s, BROUGHT_S)
        while True:
            arrived, _ = ray.wait(list(by_ref), num_returns=1, timeout=look_s)
            if not arrived and self._starved(tasks):
                # An actor may be seen to be idle a moment before its finished task is reported.
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
            # Another process asks, because an actor takes the calls of one process in order: one from here would wait.
            return bool(ray.get(all_idle.remote([task.actor for task in tasks], ANSWER_S), timeout=2 * ANSWER_S))
        except RayError:  # also where that process could not be started, or was late
            return False
