"""Synthetic quadratic saddle problems, one for each row: data whose saddle is known in closed form.

Shapes: N clients, R rows a client, F numbers a row, X and Y the dimensions of x and y.
"""

import math
from typing import Annotated, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from raysim import draws
from raysim.data.table import Source, Splits, Table
from raysim.errors import ConfigError, DataError
from raysim.registry import STRICT

Array = TypeVar("Array", NDArray[np.floating], torch.Tensor)
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Quadratic(Source):
    """Synthetic quadratic saddle problems with a closed-form solution, one or more rows a client.

    A row holds the coefficients of ``F(x, y; row) = 1/2 x'Ax + x'By - 1/2 y'Cy + a'x - c'y`` as float32
    ``[A.ravel(), B.ravel(), C.ravel(), a, c]``, with A (X, X) and C (Y, Y) symmetric, B (X, Y), a (X,) and c (Y,). With
    s = `spread`, client i has ``A_i = (A_0 + s H_i) / (1 + s)``, C_i alike, and ``B_i = B_0 + s N(0, 1)``, a_i and c_i
    alike. A_0, H_i and so A_i have their eigenvalues in [mu, 2 mu] whatever the spread; entries of B_0, a_0, c_0 are
    N(0, 1). Labels are all 0, the natural partition is by client, and the test is empty.

    Unless told otherwise f, the mean over clients, is strongly convex in x and strongly concave in y. With `rank_y`
    below Y it is concave in y, not strongly, and satisfies the Polyak-Łojasiewicz condition with modulus mu. With
    `shift` above 2 mu it is concave in x, above mu it may be nonconvex. A stationary point is a minimum of
    max_y f(x, y) only where ``A + B C^+ B'`` of the clients' mean coefficients is still positive definite; larger
    shifts leave f unbounded.

    Attributes:
        clients: how many clients, each with its own A_i, B_i, C_i, a_i, c_i.
        rows: rows a client; they differ in a and c only.
        dim_x, dim_y: the lengths X of x and Y of y.
        rank_y: the rank of every C_i, at most Y; None is Y. Below that there is one subspace of this dimension, the
            same for all clients, in which all C_i have their eigenvalues in [mu, 2 mu] and to which the rows of all
            B_i, all c_i and the noise on c belong; entries are N(0, 1) in a basis of it.
        shift: subtracted from the diagonal of every A_i.
        spread: how far clients differ; 0 makes them identical.
        noise: the standard deviation of a row's a and c around its client's; the rows' mean stays a_i, c_i up to
            rounding, so a client's mean function does not depend on it.
        mu: the modulus of strong convexity (before the shift) and of strong concavity or PL.
        identical: every client has the common function A_0, B_0, C_0, a_0, c_0, as with spread 0.

    Raises:
        ConfigError: rank_y is above dim_y.
    """

    clients: Count
    rows: Count = 1
    dim_x: Count = 4
    dim_y: Count = 3
    rank_y: Count | None = None
    shift: Annotated[float, Field(ge=0)] = 0.0
    spread: Annotated[float, Field(ge=0)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    mu: Annotated[float, Field(gt=0)] = 1.0
    identical: bool = False

    def __post_init__(self) -> None:
        if self.rank_y is not None and self.rank_y > self.dim_y:
            raise ConfigError("data.rank_y", f"is {self.rank_y}, but y has {self.dim_y} coordinates (data.dim_y)")

    def load(self, seed: int) -> Splits:
        rng = draws.generator(seed, "quadratic")
        n, x, y = self.clients, self.dim_x, self.dim_y
        # The dimension of the subspace of y that matters, whose basis is drawn last.
        r = y if self.rank_y is None else self.rank_y
        spread = 0.0 if self.identical else self.spread

        def definite(d: int) -> NDArray[np.float64]:
            common, by_client = _definite(rng, 1, d, self.mu), _definite(rng, n, d, self.mu)
            return (common + spread * by_client) / (
                1 + spread
            )  # a mean of the two, which keeps the bounds on eigenvalues

        def free(*shape: int) -> NDArray[np.float64]:
            return rng.standard_normal((1, *shape)) + spread * rng.standard_normal((n, *shape))

        A, B, C = definite(x) - self.shift * np.eye(x), free(x, r), definite(r)
        vectors_NV = np.concatenate([free(x), free(r)], axis=1)
        noise_NRV = self.noise * rng.standard_normal((n, self.rows, x + r))
        vectors_NRV = vectors_NV[:, None] + noise_NRV - noise_NRV.mean(axis=1, keepdims=True)
        if r < y:
            basis, _ = np.linalg.qr(rng.standard_normal((y, r)))
            B, C = B @ basis.T, _symmetric(basis @ C @ basis.T)
            vectors_NRV = np.concatenate([vectors_NRV[..., :x], vectors_NRV[..., x:] @ basis.T], axis=2)

        flat_NM = np.concatenate([matrix.reshape(n, -1) for matrix in (A, B, C)], axis=1)
        flat_NRM = np.broadcast_to(flat_NM[:, None], (n, self.rows, flat_NM.shape[1]))
        features = np.concatenate([flat_NRM, vectors_NRV], axis=2, dtype=np.float32).reshape(n * self.rows, -1)
        train = Table(
            features, np.zeros(n * self.rows, dtype=np.int64), np.repeat(np.arange(n, dtype=np.int64), self.rows)
        )
        return Splits(train, train.take(np.arange(0)), classes=1)

    def fingerprint(self) -> str:
        return f"numpy {np.__version__}"  # NumPy's generator draws the numbers


def unpack_quadratic(features: Array, dim_x: int, dim_y: int) -> tuple[Array, Array, Array, Array, Array]:
    """Returns the coefficients (A, B, C, a, c) of rows of `Quadratic`, as views; fit for torch.func.vmap.

    Args:
        features: (..., F) NumPy array or tensor with F = X*X + X*Y + Y*Y + X + Y.
        dim_x, dim_y: X and Y.

    Returns:
        A (..., X, X), B (..., X, Y), C (..., Y, Y), a (..., X), c (..., Y).

    Raises:
        DataError: F does not fit the dimensions.
    """
    batch: tuple[int, ...] = tuple(features.shape[:-1])
    shapes: tuple[tuple[int, ...], ...] = ((dim_x, dim_x), (dim_x, dim_y), (dim_y, dim_y), (dim_x,), (dim_y,))
    width = sum(math.prod(shape) for shape in shapes)
    if features.shape[-1] != width:
        raise DataError(
            f"rows of {features.shape[-1]} numbers are no quadratic with dim_x {dim_x} and dim_y {dim_y}, which has "
            f"{width}; use the data 'quadratic' and the same dimensions in data and problem"
        )
    parts: list[Array] = []
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        parts.append(features[..., start:end].reshape(batch + shape))
        start = end
    A, B, C, a, c = parts
    return A, B, C, a, c


def _definite(rng: np.random.Generator, n: int, d: int, mu: float) -> NDArray[np.float64]:
    """Draws symmetric matrices (n, d, d) with eigenvalues uniform in [mu, 2 mu] and random eigenvectors."""
    q, _ = np.linalg.qr(rng.standard_normal((n, d, d)))
    return _symmetric((q * rng.uniform(mu, 2 * mu, (n, 1, d))) @ q.swapaxes(1, 2))


def _symmetric(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Makes matrices (n, d, d), symmetric up to rounding, symmetric to the bit."""
    return np.asarray((matrices + matrices.swapaxes(1, 2)) / 2)
