"""Muon in float32. torch.optim.Muon iterates in bfloat16, 40 times slower on a CPU that has no instructions for it."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

# maximise the slope at zero, so that small singular values rise fastest
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """The matrix with all of its singular values brought near 1, by Newton-Schulz's iteration.

    X ← X / ‖X‖ (Frobenius); then `steps` times X ← a X + (b G + c G²) X
    with G = X Xᵀ and (a, b, c) = (3.4445, -4.7750, 2.0315). With X = U S Vᵀ a step takes each singular value s to
    a s + b s³ + c s⁵; five steps take what is between 0.01 and 1 to between 0.68 and 1.14.

    Keller Jordan, Muon: https://kellerjordan.github.io/posts/muon/

    Args:
        matrix: [rows, columns], any scale; computed in its own dtype.

    Returns:
        [rows, columns]; zeros stay zeros.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix  # the smaller of the two Gram matrices
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Orthogonalised momentum, for the matrices of hidden layers: takes the steps that torch.optim.Muon takes.

    B ← μ B + (1 - μ) g;  w ← (1 - η λ) w - η √max(1, rows / columns) · orthogonalized(μ B + (1 - μ) g)

    Keller Jordan, Muon: https://kellerjordan.github.io/posts/muon/

    Args:
        matrices: w, [rows, columns] each, with a gradient g whenever a step is taken.
        lr: η.
        weight_decay: λ.
        momentum: μ.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    def step(self) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    self._update(weight, group["lr"], group["weight_decay"], group["momentum"])

    def _update(self, weight: Tensor, lr: float, weight_decay: float, momentum: float) -> None:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        average = state["momentum"].lerp_(weight.grad, 1 - momentum)
        update = orthogonalized(weight.grad.lerp(average, momentum))
        weight.mul_(1 - lr * weight_decay)
        weight.add_(update, alpha=-lr * math.sqrt(max(1.0, weight.shape[0] / weight.shape[1])))
