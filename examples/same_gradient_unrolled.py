"""Differentiate through the same PT and FT steps with metapt, a textbook loop, TorchOpt and higher."""

import copy
from importlib.util import find_spec

import torch
from torch import nn
from torch.autograd import grad
from torch.func import functional_call
from torch.nn import functional as F

from metapt import ModuleProblem
from metapt.hypergrad import SGD, exact_hypergradient

STEPS, LR, HEAD_LR = 20, 0.5, 0.5
torch.manual_seed(0)
X, TARGETS = torch.randn(2, 50, 5, dtype=torch.float64)  # of PT, where an example has the weight sigmoid(phi)
PHI = torch.randn(50, dtype=torch.float64)
TRAIN, VALIDATION = ((x, (x[:, 0] > 0).double()) for x in torch.randn(2, 20, 5, dtype=torch.float64))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 5)

    def forward(self, x):
        features = self.encoder(x)
        return features, self.head(features)


NETWORK, FT_HEAD = Network().double(), nn.Linear(6, 1, bias=False).double()


def pretrain_loss(outputs, phi):
    return (torch.sigmoid(phi) * (outputs - TARGETS).square().mean(1)).mean()


def finetuned_loss(network):  # on validation examples, after one differentiable FT step of the head
    head = FT_HEAD.weight[0].detach().requires_grad_()
    (gradient,) = grad(F.mse_loss(network(TRAIN[0])[0] @ head, TRAIN[1]), head, create_graph=True)
    return F.mse_loss(network(VALIDATION[0])[0] @ (head - HEAD_LR * gradient), VALIDATION[1])


def metapt(phi):
    problem = ModuleProblem(
        NETWORK.encoder,
        NETWORK.head,
        FT_HEAD,
        pretrain_loss=lambda encoder, head, meta, x: pretrain_loss(head(encoder(x)), meta["phi"]),
        finetune_loss=lambda head, features, batch: F.mse_loss(head(features)[:, 0], batch[1]),
    )
    start = problem, problem.pretrained, {"phi": phi.detach()}, problem.head
    data = {"pretrain_batches": [X] * STEPS, "train_batches": [TRAIN], "validation_batches": [VALIDATION]}
    optimizers = {"pretrain_optimizer": SGD(LR), "finetune_optimizer": SGD(HEAD_LR)}
    return exact_hypergradient(*start, **data, **optimizers, network=False).gradient["phi"]


def textbook(phi):
    weights = dict(NETWORK.named_parameters())
    for _ in range(STEPS):
        loss = pretrain_loss(functional_call(NETWORK, weights, X)[1], phi)
        gradients = grad(loss, list(weights.values()), create_graph=True)
        weights = {name: weights[name] - LR * slope for name, slope in zip(weights, gradients, strict=True)}
    return grad(finetuned_loss(lambda x: functional_call(NETWORK, weights, x)), phi)[0]


def torchopt(phi):
    from torchopt import MetaSGD

    network = copy.deepcopy(NETWORK)
    optimizer = MetaSGD(network, LR)
    for _ in range(STEPS):
        optimizer.step(pretrain_loss(network(X)[1], phi))
    return grad(finetuned_loss(network), phi)[0]


def higher(phi):
    from higher import innerloop_ctx

    with innerloop_ctx(NETWORK, torch.optim.SGD(NETWORK.parameters(), LR)) as (network, optimizer):
        for _ in range(STEPS):
            optimizer.step(pretrain_loss(network(X)[1], phi))
        return grad(finetuned_loss(network), phi)[0]


def main():
    phi = PHI.clone().requires_grad_()
    expected, found = metapt(phi), {}
    for library in (textbook, *(library for library in (torchopt, higher) if find_spec(library.__name__))):
        found["unroll", library.__name__] = float((library(phi) - expected).norm() / expected.norm())
        print(f"unroll, {library.__name__}: {found['unroll', library.__name__]:.0e} of the norm away from metapt")
    return found


if __name__ == "__main__":
    main()
