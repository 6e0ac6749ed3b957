"""Defines the perceptron of a language model's block, and a mixture of many from which a router picks for each token.

All experts are on one device. Their balance is that of the Switch Transformer (Fedus et al. 2021, arXiv 2101.03961).
Shape letters: T tokens, D width, X experts, K experts of a token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.bounds import MAX_WIDTH, require_between
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.uncompiled import uncompiled

Activation = Literal["squared_relu", "swiglu", "geglu", "gelu"]


class ExpertMLP(nn.Module):
    """Two linears with an activation between; with a gate (Shazeer 2020, arXiv 2002.05202), three."""

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.gate = Linear(width, hidden, bias=False) if activation in GATES else None
        self.up = Linear(width, hidden, bias=False)
        self.down = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.gate is None:
            hidden = ACTIVATIONS[self.activation](hidden)
        else:
            hidden = GATES[self.activation](self.gate(x)) * hidden
        y: Tensor = self.down(hidden)
        return y


#: The first is max(0, x)^2 of So et al. 2021 (arXiv 2109.08668).
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"squared_relu": lambda x: F.relu(x).square(), "gelu": F.gelu}
GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": partial(F.gelu, approximate="tanh")}
_MAX_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of each block.

    Args:
        count: X.
        per_token: K.
        hidden: between the linears of an expert.
        normalised: whether the weights of a token's experts add up to 1; else they are its probabilities.
        balance: times the loss of balance is added to that of each token in training; 0 adds none. It is
            X sum_x f_x p_x, with the share of tokens f and the mean probability p of an expert over all blocks and
            tokens of a pass (equations 4 to 6), so it is K where they are even.
        dense_layers: blocks that have a perceptron as usual, from 0.
    """

    count: int
    per_token: int
    hidden: int
    normalised: bool = True
    balance: float = 0.0
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_between(1, _MAX_EXPERTS, **{"experts.count": self.count})
        require_between(1, self.count, **{"experts.per_token": self.per_token})
        require_between(1, MAX_WIDTH, **{"experts.hidden": self.hidden})
        require_between(0, 1e3, **{"experts.balance": self.balance})


class Routes:
    """What the blocks of one pass did with its tokens, until that is asked for; blocks run again later add nothing."""

    def __init__(self) -> None:
        self._rows, self._is_open = 0, True
        self._chosen_X: Tensor | float = 0.0
        self._probable_X: Tensor | float = 0.0

    def add(self, probabilities_TX: Tensor, chosen_TK: Tensor) -> None:
        """Those of one block."""
        if self._is_open:
            self._rows += len(probabilities_TX)
            experts = probabilities_TX.shape[1]
            self._chosen_X = self._chosen_X + nn.functional.one_hot(chosen_TK, experts).sum((0, 1)).float()
            self._probable_X = self._probable_X + probabilities_TX.sum(0)

    def imbalance(self) -> Tensor | float:
        """X sum_x f_x p_x; 0 where no block was run."""
        self._is_open = False
        if not isinstance(self._chosen_X, Tensor) or not isinstance(self._probable_X, Tensor):
            return 0.0
        return len(self._chosen_X) * (self._chosen_X / self._rows) @ (self._probable_X / self._rows)


class MixtureOfExperts(nn.Module):
    """In place of a perceptron: y = sum over K experts of a token of its weight times the expert's output."""

    def __init__(self, width: int, activation: Activation, experts: Experts) -> None:
        super().__init__()
        self.per_token, self.normalised = experts.per_token, experts.normalised
        self.router = Linear(width, experts.count, bias=False)
        self.perceptrons = nn.ModuleList(ExpertMLP(width, experts.hidden, activation) for _ in range(experts.count))

    @uncompiled  # how many rows an expert gets depends on the tokens
    def forward(self, x: Tensor, routes: Routes | None = None) -> Tensor:
        x_TD = x.flatten(0, -2)
        probabilities_TX = self.router(x_TD).float().softmax(-1)
        weights_TK, chosen_TK = probabilities_TX.topk(self.per_token, dim=-1)
        if routes is not None:
            routes.add(probabilities_TX, chosen_TK)
        if self.normalised:
            weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        y_TD = torch.zeros_like(x_TD)
        for number, expert in enumerate(self.perceptrons):
            if chosen_TK.is_meta or type(chosen_TK) is not Tensor:
                # What a step costs is found by tensors without values: an even share where there is nothing to go by.
                row = place = chosen_TK.new_empty(max(1, chosen_TK.numel() // len(self.perceptrons)))
            else:
                row, place = (chosen_TK == number).nonzero(as_tuple=True)
            if len(row) or self.training:  # where no token came, its gradients are zeros, as those of a stack are
                update = expert(x_TD[row]) * weights_TK[row, place, None].to(x.dtype)
                y_TD = y_TD.index_add(0, row, update.to(y_TD.dtype))
        return y_TD.view_as(x)
