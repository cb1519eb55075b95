"""What problems whose rows have cross-entropy losses share."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy


def row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row: logits (..., B, C) and labels (..., B) to (..., B)."""
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


def pooled_losses(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same of pooled outputs: (N, C) and (N,) to (N,)."""
    shifted = logits - logits.max(1, keepdims=True)
    losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
    return losses
