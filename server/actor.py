"""The server as a Ray actor: a thin shell around the round loop."""

from collections.abc import Iterator

import ray

from raysim.fleet import Fleet
from server.job import Job, Progress
from server.rounds import Server


# The actor reserves no processor, since it waits for clients nearly all the time.
@ray.remote(num_cpus=0, concurrency_groups={"control": 1})  # type: ignore[call-overload]
class ServerActor:
    """Runs the rounds and streams their progress; `stop` can be called meanwhile."""

    def __init__(self, job: Job, fleet: Fleet, resume: int | None) -> None:
        self._server = Server(job, fleet)
        if resume is not None:
            self._server.restore(job.checkpoints.load(resume)[0])

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Lets `run` end after the round that is being played."""
        self._server.stop()

    def run(self) -> Iterator[Progress]:
        """Plays all rounds and yields a report after each."""
        yield from self._server.run()
