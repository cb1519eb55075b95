"""Bands: runs that differ in their seed only, drawn as the line of their median and the range that they cover."""

from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray


def draw(
    ax: Axes,
    at: NDArray[np.float64],
    values: NDArray[np.float64],
    label: str,
    colour: Any = None,
    step: Literal["post"] | None = None,
) -> Any:
    """Draws runs as one line and, if there are several, a band from the least to the greatest value.

    Args:
        ax: the axes to draw on.
        at: points on the horizontal axis, of shape (points,).
        values: of shape (runs, points); infinite where a run counts as the worst possible.
        label: the line's label.
        colour: the colour of line and band; None takes the next colour of the axes' cycle.
        step: "post" holds each value until the next point; None draws straight lines.

    Returns:
        The line.
    """
    style: dict[str, Any] = {"drawstyle": "steps-post"} if step else {}
    (line,) = ax.plot(at, median(values), color=colour, label=label, linewidth=1.6, **style)
    if len(values) > 1:
        finite = np.where(np.isfinite(values), values, np.nan)
        low, high = np.fmin.reduce(finite, axis=0), np.fmax.reduce(finite, axis=0)
        ax.fill_between(at, low, high, step=step, color=line.get_color(), alpha=0.2, linewidth=0)
    return line


def median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the median over runs (runs, points); NaN where it is infinite or a value is undefined."""
    with np.errstate(invalid="ignore"):  # the mean of two infinities of unlike sign is NaN
        middle = np.median(values, axis=0)
    return np.where(np.isfinite(middle), middle, np.nan)
