"""Compute one implicit hypergradient with metapt, a textbook loop, Betty and TorchOpt, and print how they differ."""

from importlib.util import find_spec

import torch
from torch import nn
from torch.autograd import grad

from metapt.hypergrad import SGD, ConjugateGradient, Neumann, Pretrained, Unroll, hypergradient

TERMS, LR, HEAD_LR = 10, 1.0, 0.5
torch.manual_seed(0)
X, TARGETS = torch.randn(2, 50, 5, dtype=torch.float64)  # of PT, where an example has the weight sigmoid(phi)
TRAIN, VALIDATION = ((x, (x[:, 0] > 0).double()) for x in torch.randn(2, 20, 5, dtype=torch.float64))
START, PHI, FT_HEAD = (torch.randn(size, dtype=torch.float64) for size in (60, 50, 6))


def encode(weights, x):
    return torch.tanh(x @ weights[:30].view(5, 6))


def pretrain_loss(weights, phi):
    errors = (encode(weights, X) @ weights[30:].view(6, 5) - TARGETS).square().mean(1)
    return (torch.sigmoid(phi) * errors).mean() + 0.02 * weights.square().sum()


def finetuned_loss(weights):  # on validation examples, after one differentiable FT step of the head
    head = FT_HEAD.clone().requires_grad_()
    (gradient,) = grad(nn.functional.mse_loss(encode(weights, TRAIN[0]) @ head, TRAIN[1]), head, create_graph=True)
    return nn.functional.mse_loss(encode(weights, VALIDATION[0]) @ (head - HEAD_LR * gradient), VALIDATION[1])


class Problem:  # metapt takes the FT step itself
    def pretrain_loss(self, pretrained, meta, batch):
        return pretrain_loss(torch.cat(pretrained.vector()), meta["phi"])

    def encode(self, encoder, batch):
        return encode(encoder["weights"], batch[0])

    def head_loss(self, head, features, batch):
        return nn.functional.mse_loss(features @ head["weights"], batch[1])


def metapt(method, weights):
    start = Pretrained({"weights": weights[:30]}, {"weights": weights[30:]}), {"phi": PHI}, {"weights": FT_HEAD}
    data = {"pretrain_batch": X, "train_batches": [TRAIN], "validation_batch": VALIDATION}
    inverse = Neumann(TERMS, LR) if method == "neumann" else ConjugateGradient(rtol=1e-13, max_steps=200)
    return hypergradient(Problem(), *start, **data, inverse=inverse, finetuning=Unroll(1, SGD(HEAD_LR))).gradient["phi"]


def textbook(method, weights):
    weights, phi = weights.clone().requires_grad_(), PHI.clone().requires_grad_()
    (b,) = grad(finetuned_loss(weights), weights)
    (gradient,) = grad(pretrain_loss(weights, phi), weights, create_graph=True)
    solution = LR * b
    for _ in range(TERMS):
        solution = LR * b + solution - LR * grad(gradient, weights, solution, retain_graph=True)[0]
    if method == "cg":  # conjugate gradients converge to the solution of the linear system
        solution = torch.linalg.solve(torch.func.hessian(pretrain_loss)(weights, phi), b)
    return -grad(gradient, phi, solution)[0]


def betty(method, weights):
    from betty import configs, engine, problems

    def problem(name, values, lr, loss, **config):
        kind, module = type(name, (problems.ImplicitProblem,), {"training_step": loss}), nn.ParameterList([values])
        return kind(name, configs.Config(**config), module, torch.optim.SGD(module.parameters(), lr), None, [(X,)])

    solver = {"type": method, "neumann_iterations": TERMS, "neumann_alpha": LR, "cg_iterations": 60}
    inner = problem("inner", weights, 0, lambda self, x: pretrain_loss(self.module[0], self.outer.module[0]), **solver)
    outer = problem("outer", PHI.clone(), 1, lambda self, x: finetuned_loss(self.inner.module[0]))
    levels = {"u2l": {outer: [inner]}, "l2u": {inner: [outer]}}
    engine.Engine([outer, inner], configs.EngineConfig(train_iters=1, strategy="cpu"), levels).run()
    return PHI - outer.module[0].detach()  # the gradient, since the learning rate is 1


def torchopt(method, weights):
    from torchopt import diff, linear_solve

    series, cg = linear_solve.solve_inv(ns=True, maxiter=TERMS, alpha=LR), linear_solve.solve_cg(rtol=1e-13)
    root = diff.implicit.custom_root(torch.func.grad(pretrain_loss), 1, solve=series if method == "neumann" else cg)
    phi = PHI.clone().requires_grad_()
    return grad(finetuned_loss(root(lambda weights, phi: weights)(weights, phi)), phi)[0]


def main():
    weights, found = START, {}
    for _ in range(2000):  # PT
        weights = weights - LR * torch.func.grad(pretrain_loss)(weights, PHI)
    for method in ("neumann", "cg"):
        expected = metapt(method, weights)
        for library in (textbook, *(library for library in (betty, torchopt) if find_spec(library.__name__))):
            found[method, library.__name__] = float((library(method, weights) - expected).norm() / expected.norm())
            print(f"{method}, {library.__name__}: {found[method, library.__name__]:.0e} of the norm away from metapt")
    return found


if __name__ == "__main__":
    main()
