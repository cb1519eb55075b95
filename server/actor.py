"""The server as a Ray actor: a thin shell around the round loop."""

from collections.abc import Iterator

import ray

from raysim.fleet import Fleet
from server.rounds import Job, Progress, Server


@ray.remote(num_cpus=0)  # it waits for clients nearly all the time
class ServerActor:
    """Runs the rounds and streams its progress."""

    def __init__(self, job: Job, fleet: Fleet) -> None:
        self._server = Server(job, fleet)

    def run(self) -> Iterator[Progress]:
        yield from self._server.run()
