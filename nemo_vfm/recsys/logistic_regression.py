"""Fits logistic regression on single ids and dense features: what a model with interactions has to beat.

Shape letters: B samples, N values, R rows of all tables.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.storage.files import write_bytes
from nemo_vfm.sparse.jagged import Jagged


class LabelledSamples(NamedTuple):
    """Samples to fit or to score.

    Args:
        features: by name, with a row a sample.
        label_B: 0 to 1; it is not read for scores.
    """

    features: Mapping[str, Jagged]
    dense_BF: Tensor
    label_B: Tensor


@dataclass(frozen=True, eq=False)
class LogisticModel:
    """logit = b + sum over dense features of w x + sum over features of the mean weight of the row's ids."""

    weights: Mapping[str, Tensor]  #: of each feature, one number a row of its table, float32
    dense_F: Tensor  #: of dense features
    bias: Tensor  #: b, of one number

    def score(self, features: Mapping[str, Jagged], dense_BF: Tensor) -> Tensor:
        """Logits: float32 (B,)."""
        logit_B = self.bias + dense_BF @ self.dense_F
        for name in sorted(self.weights):  # safetensors files are sorted, too: the same sums
            logit_B = logit_B + _row_means(self.weights[name], features[name])
        return logit_B

    def save(self, path: Path) -> None:
        """As safetensors: `weights/FEATURE`, `dense`, `bias`."""
        from safetensors.torch import save

        tensors = {f"weights/{name}": weight_R.contiguous() for name, weight_R in self.weights.items()}
        write_bytes(path, save(tensors | {"dense": self.dense_F, "bias": self.bias}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` wrote."""
        from safetensors.torch import load_file

        tensors = load_file(path)
        weights = {name.removeprefix("weights/"): one for name, one in tensors.items() if name.startswith("weights/")}
        return cls(weights, tensors["dense"], tensors["bias"])


class LogisticRegression:
    """Minimises the summed cross-entropy + ridge/2 |w|^2 (b is free) by L-BFGS, on all samples at once.

    Each weight is scaled by the root of the curvature that its number of samples gives, so that rare ids converge as
    quickly as popular ones. Memory is that of the samples: 4 bytes an id.

    Args:
        ridges: strengths of the penalty to try. 1 / ridge is the variance that weights are expected to have.
        max_iterations: of L-BFGS. It ends earlier where the loss no longer falls.
    """

    def __init__(self, *, ridges: Sequence[float] = (3.0, 10.0, 30.0, 100.0), max_iterations: int = 60) -> None:
        for ridge in ridges:
            require_between(1e-6, 1e9, ridge=ridge)
        require_between(1, 100, num_ridges=len(ridges))
        require_between(1, 10_000, max_iterations=max_iterations)
        self.ridges, self.max_iterations = tuple(ridges), max_iterations

    def fits(self, parts: Iterable[LabelledSamples], rows: Mapping[str, int]) -> Iterator[tuple[float, LogisticModel]]:
        """Each ridge, with the weights of these samples.

        Args:
            parts: all samples, in any pieces, with the features of `rows`.
            rows: of the table of each feature that is to be used.

        Raises:
            ValueError: there are no samples.
        """
        problem = _Problem(parts, rows)
        for ridge in self.ridges:
            yield ridge, self._fit(problem, ridge)

    def _fit(self, problem: "_Problem", ridge: float) -> LogisticModel:
        root_R = (problem.curvature_R + ridge).sqrt()
        scaled = torch.zeros(problem.num_weights, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [scaled], max_iter=self.max_iterations, history_size=10, line_search_fn="strong_wolfe",
            tolerance_grad=1e-7, tolerance_change=1e-10,
        )  # fmt: skip

        def closure() -> float:
            loss, gradient_R = problem.loss_and_gradient(scaled.detach() / root_R, ridge)
            scaled.grad = gradient_R / root_R
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        weight_R, end = (scaled.detach() / root_R).float(), 1 + problem.num_dense
        weights = {name: weight_R[at : at + problem.rows[name]].clone() for name, at in problem.first.items()}
        return LogisticModel(weights, weight_R[1:end].clone(), weight_R[:1].clone())


class _SamplePiece(NamedTuple):
    """A piece of the samples, with ids counted over the rows of all tables, in int32."""

    dense_BF: Tensor
    label_B: Tensor
    single_FB: Tensor  #: of the features with one id a sample
    others: tuple[Jagged, ...]


class _Problem:
    """The mean loss over all samples as a function of the weights: the bias, dense features, rows of all tables."""

    def __init__(self, parts: Iterable[LabelledSamples], rows: Mapping[str, int]) -> None:
        pieces = iter(parts)
        if (begin := next(pieces, None)) is None:
            raise ValueError("there are no samples to fit logistic regression on")
        self.rows, self.num_dense = rows, begin.dense_BF.shape[1]
        self.first, self.num_weights = {}, 1 + self.num_dense
        for name, count in rows.items():
            self.first[name], self.num_weights = self.num_weights, self.num_weights + count
        self.parts = []
        for samples in itertools.chain([begin], pieces):
            shifted = [
                Jagged((samples.features[name].values_N + at).to(torch.int32), samples.features[name].lengths_B)
                for name, at in self.first.items()
            ]
            is_single = [bool((one.lengths_B == 1).all()) for one in shifted]
            single = [one.values_N for one, alone in zip(shifted, is_single, strict=True) if alone]
            others = tuple(one for one, alone in zip(shifted, is_single, strict=True) if not alone)
            empty_FB = torch.empty((0, len(samples.label_B)), dtype=torch.int32)
            single_FB = torch.stack(single) if single else empty_FB
            self.parts.append(_SamplePiece(samples.dense_BF.float(), samples.label_B.float(), single_FB, others))
        self.num_samples = sum(len(part.label_B) for part in self.parts)
        # About the diagonal of the Hessian of the summed loss, without the penalty.
        self.curvature_R = torch.zeros(self.num_weights, dtype=torch.float64)
        rate = sum(float(part.label_B.sum()) for part in self.parts) / self.num_samples
        variance = max(rate * (1 - rate), 1e-3)
        for part in self.parts:
            at_each_B = torch.full_like(part.label_B, variance)
            self._add_products(part, at_each_B, part.dense_BF**2, self.curvature_R)

    def loss_and_gradient(self, weight_R: Tensor, ridge: float) -> tuple[float, Tensor]:
        """Both of the mean loss: float64."""
        used_R = weight_R.float()
        loss, gradient_R = 0.0, torch.zeros_like(weight_R)
        for part in self.parts:
            logit_B = used_R[0] + part.dense_BF @ used_R[1 : 1 + self.num_dense]
            logit_B += used_R.index_select(0, part.single_FB.flatten()).view(part.single_FB.shape).sum(0)
            for rows in part.others:
                logit_B += _row_means(used_R, rows)
            loss += float(torch.nn.functional.softplus(logit_B).sum() - logit_B @ part.label_B)
            self._add_products(part, logit_B.sigmoid() - part.label_B, part.dense_BF, gradient_R)
        penalised_R = weight_R.clone()
        penalised_R[0] = 0
        gradient_R += ridge * penalised_R
        loss += ridge / 2 * float(penalised_R @ penalised_R)
        return loss / self.num_samples, gradient_R / self.num_samples

    def _add_products(self, part: _SamplePiece, of_B: Tensor, dense_BF: Tensor, sums_R: Tensor) -> None:
        """Add to each weight the sum over samples of its input times `of_B`; in float32 within a part only."""
        sums_R[0] += of_B.sum()
        sums_R[1 : 1 + self.num_dense] += of_B @ dense_BF
        added_R = torch.zeros(self.num_weights)
        added_R.index_add_(0, part.single_FB.flatten(), of_B.expand(part.single_FB.shape).flatten())
        for rows in part.others:
            share_B = of_B / rows.lengths_B.clamp(min=1)
            added_R.index_add_(0, rows.values_N, share_B.repeat_interleave(rows.lengths_B))
        sums_R += added_R


def _row_means(weight_R: Tensor, rows: Jagged) -> Tensor:
    """Of the weights of each row's ids, 0 where it has none: (B,)."""
    value_N = weight_R.index_select(0, rows.values_N)
    return torch.segment_reduce(value_N, "mean", lengths=rows.lengths_B, initial=0.0, unsafe=True)
