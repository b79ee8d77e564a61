"""The head that is fine-tuned on a frozen encoder is the best one, whatever the fit begins with."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from metapt.errors import ConfigError, TrainingError
from metapt.hypergrad import Params
from metapt.training.supervised import finetune_head

from .problems import DTYPE, Batch, Classifier, Normed, classification, draw, same

L2 = 0.03
BATCHES = [classification("train", index, torch.Generator().manual_seed(index)) for index in range(3)]


class Regression(Normed):
    """Two real targets, no bias, squares: the best head is a ridge regression's."""

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return 0.5 * (features @ head["weight"] - batch.labels).square().sum(1).mean()


class NoBias(Classifier):
    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(features @ head["weight"].T, batch.labels)


def test_it_is_ridge_regression_on_the_encoders_features_in_evaluation_mode() -> None:
    problem = Regression()
    problem.pretrained.buffers["1.running_mean"].copy_(draw(20, 5))
    batches = [Batch(draw(30 + size, size, 4), draw(40 + size, size, 2)) for size in (7, 30)]  # each weighs the same
    head = finetune_head(problem, problem.pretrained, {"weight": draw(50, 5, 2)}, batches, l2=L2)["weight"]
    module, network = problem.module.eval(), {**problem.pretrained.encoder, **problem.pretrained.buffers}
    gram, moment = L2 * torch.eye(5, dtype=DTYPE), torch.zeros(5, 2, dtype=DTYPE)
    for batch in batches:
        z = functional_call(module, network, batch.inputs)
        gram = gram + z.T @ z / len(z) / 2
        moment = moment + z.T @ batch.labels / len(z) / 2
    torch.testing.assert_close(head, torch.linalg.solve(gram, moment), rtol=1e-9, atol=1e-10)


def test_it_is_scikit_learns_logistic_regression() -> None:
    problem = NoBias()
    head = finetune_head(problem, problem.pretrained, {"weight": torch.zeros(3, 5, dtype=DTYPE)}, BATCHES, l2=L2)
    features = torch.cat([problem.encode(problem.pretrained.encoder, batch) for batch in BATCHES]).numpy()
    labels = torch.cat([batch.labels for batch in BATCHES]).numpy()
    theirs = LogisticRegression(C=1 / (L2 * len(labels)), fit_intercept=False, tol=1e-12, max_iter=10_000).fit(
        features, labels
    )
    np.testing.assert_allclose(head["weight"].numpy(), theirs.coef_, rtol=1e-6, atol=1e-7)


def test_where_the_fit_begins_does_not_matter() -> None:
    problem = Classifier()
    zeros = {name: torch.zeros_like(value) for name, value in problem.head.items()}
    first, second = (finetune_head(problem, problem.pretrained, head, BATCHES) for head in (zeros, problem.head))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-7, atol=1e-8)
        assert not value.requires_grad


def test_a_second_call_gives_the_same_bits_and_nothing_that_it_is_given_changes() -> None:
    class Careless(Normed):
        """Its `encode` leaves the module in training mode, which updates BatchNorm's statistics."""

        def encode(self, encoder: Params, batch: Batch) -> Tensor:
            self.module.train()
            return functional_call(self.module, encoder, batch.inputs)

    for problem in (Normed(), Careless()):
        before = copy.deepcopy((problem.pretrained, problem.head))
        first = finetune_head(problem, problem.pretrained, problem.head, BATCHES)
        with torch.no_grad():
            second = finetune_head(problem, problem.pretrained, problem.head, (Batch(*each) for each in BATCHES))
        assert same(first, second)
        assert same(before, (problem.pretrained, problem.head))
        for part in problem.pretrained:
            assert not any(value.requires_grad or value.grad is not None for value in part.values())


class Endless(Classifier):
    """An FT loss without a minimum."""

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return -head["bias"].square().sum()


@pytest.mark.parametrize("where", ["minibatch", "encoder", "head", "loss"])
def test_what_is_not_finite_is_an_error(where: str) -> None:
    problem = Endless() if where == "loss" else Classifier()
    inputs = BATCHES[0].inputs.clone()
    parts = {"minibatch": inputs, "encoder": problem.pretrained.encoder["weight"], "head": problem.head["weight"]}
    if where in parts:
        parts[where][0, 0] = torch.nan
    with pytest.raises(TrainingError, match=r"not finite|no.* minimum"):
        finetune_head(problem, problem.pretrained, problem.head, [BATCHES[0]._replace(inputs=inputs), BATCHES[1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batches": []}, "no minibatches"), ({"l2": 0.0}, "l2 is 0.0; legal"), ({"head": {}}, "head has no parameters")],
)
def test_no_minibatch_no_ridge_and_no_head_are_refused(change: dict[str, Any], message: str) -> None:
    problem = Classifier()
    with pytest.raises(ConfigError, match=message):
        finetune_head(problem, problem.pretrained, **({"batches": BATCHES, "head": problem.head} | change))
