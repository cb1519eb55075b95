"""TensorBoard as a logger."""

from cluster.loggers.logger import LoggedRun, Logger, Outcome, scalars
from server.job import Progress


class TensorBoard(Logger):
    """Writes event files into the run folder's tensorboard/; rounds that are played again are not shown twice."""

    package = "tensorboard"

    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.done + 1)

    def __call__(self, report: Progress) -> None:
        for name, value in scalars(report).items():
            self._writer.add_scalar(name, value, report.round)

    def end(self, outcome: Outcome) -> None:
        self._writer.close()
