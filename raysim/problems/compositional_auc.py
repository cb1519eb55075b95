"""Compositional AUC maximisation: the AUC problem at the weights that a step on the cross-entropy leads to.

Z. Yuan, Z. Guo, N. Chawla, T. Yang, "Compositional training for end-to-end deep AUC maximization", ICLR 2022; as
federated problem X. Zhang et al., "Federated compositional deep AUC maximization", NeurIPS 2023,
https://arxiv.org/abs/2304.10101, equations 1 to 4:

    min over x, max over y of f(g(x), y),    g(x) = x - rho (grad_w CE(w), 0, 0),    x = (w, s1, s2)

| symbol | name | meaning | default's source |
|---|---|---|---|
| f | loss | the AUC problem (raysim/problems/auc.py) | |
| g(x) | | the weights after the step, then s1 and s2 as they are | |
| CE | cross_entropy | binary cross-entropy of the network's one output | section 3.1 |
| rho | rho | the inner step | not given; 0.1 in the code of Yuan et al. |

Both levels are means over clients: f is the mean of the clients' f at the mean of their g. The Jacobian's product with
a vector q is q - rho (Hessian of CE times q_w, 0, 0), by reverse differentiation of the gradient.
"""

from typing import Literal

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.batch import Batch
from raysim.point import Point
from raysim.problems.abilities import Composed
from raysim.problems.auc import AUC
from raysim.problems.cross_entropy import binary_row_losses
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class CompositionalAUC(Composed, AUC):
    """AUC maximisation after an inner step on the cross-entropy (x: weights, s1, s2; y: scalar), for LocalSCGDAM.

    Methods that know nothing of the composition treat it as the AUC problem: `value` and `gradient` are those of f.

    Attributes:
        positive, prior: as for the AUC problem.
        score: `sigmoid`, since the network has one output.
        rho: the inner step.
        first_order: leave the Hessian out of the Jacobian, as an ablation; the gradient is then wrong.
    """

    score: Literal["sigmoid"] = "sigmoid"
    rho: NonNegativeFloat = 0.1
    first_order: bool = False

    def cross_entropy(self, x: Tensor, batch: Batch) -> Tensor:
        """Returns CE at the weights in x, as the weighted sum over the batch's rows."""
        logits = self.net(x[: self.net.size], batch.inputs)[..., 0]
        return (batch.weights * binary_row_losses(logits, self.is_positive(batch.labels))).sum(-1)

    def composed(
        self, z: Point, h: Tensor, alpha: float, inner: Batch, outer: Batch, shrink: float = 1.0
    ) -> tuple[Tensor, Point]:
        rho = shrink * self.rho
        slope = torch.func.grad(lambda x: self.cross_entropy(x, inner))
        if self.first_order:
            h = (1 - alpha) * h + alpha * (z.x - rho * slope(z.x))
            return h, self.gradient(Point(h, z.y), outer)
        gradient, times_hessian = torch.func.vjp(slope, z.x)  # type: ignore[misc]
        # Both are detached: their graph would stay in memory as long as the carry.
        h = (1 - alpha) * h + alpha * (z.x - rho * gradient.detach())
        q = self.gradient(Point(h, z.y), outer)
        (curved,) = times_hessian(q.x)
        return h, Point(q.x - rho * curved.detach(), q.y)
