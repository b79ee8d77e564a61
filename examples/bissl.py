"""BiSSL (Zakarias et al., arXiv 2410.02387): pre-train near an anchor that fine-tuning moves.

The anchor phi is a hyperparameter with the shape of the encoder theta: PT minimises L_PT + lambda / 2 |theta - phi|^2.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import metapt
from metapt.hypergrad import Adam, ConjugateGradient, Unroll, hypergradient

LAMBDA, DAMPING, META_LR = 0.1, 1.0, 0.01
torch.set_num_threads(1)  # more of them only slow small matrices down


def pretrain_loss(encoder, head, meta, batch):
    x, y = batch
    distance = sum((value - meta[name]).square().sum() for name, value in encoder.named_parameters())
    return F.mse_loss(head(encoder(x)), y) + LAMBDA / 2 * distance


def finetune_loss(head, features, batch):
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), batch[1])


def make(seed):
    """Return the problem, its PT data, and labelled examples of FT: 40, 40, and 2,000 for a test."""
    torch.manual_seed(seed)
    x, x_ft = torch.randn(5080, 8).double().split([3000, 2080])
    y = x[:, :4] + x[:, 4:] @ torch.randn(4, 4).double().abs()  # of PT: all eight features matter
    labels = (x_ft[:, :4].sum(1) > 0).double()  # of FT: the first four matter
    parts = nn.Sequential(nn.Linear(8, 4), nn.Tanh()), nn.Linear(4, 4), nn.Linear(4, 1)
    losses = {"pretrain_loss": pretrain_loss, "finetune_loss": finetune_loss}
    problem = metapt.ModuleProblem(*(part.double() for part in parts), **losses)
    return problem, (x, y), *zip(x_ft.split([40, 40, 2000]), labels.split([40, 40, 2000]), strict=True)


def gap(head, pretrained, anchor, batch, train, gradient):
    """Return the relative distance of a hypergradient of the anchor from lambda (H + lambda + damping)^-1 g, dense."""

    def finetuned_loss(weights):
        logits = torch.tanh(train[0] @ weights[:32].view(4, 8).T + weights[32:36]) @ head["weight"].T + head["bias"]
        return F.binary_cross_entropy_with_logits(logits.squeeze(1), train[1])

    def pretrained_loss(weights):  # those of the encoder, then those of the PT head
        features = torch.tanh(batch[0] @ weights[:32].view(4, 8).T + weights[32:36])
        outputs = features @ weights[36:52].view(4, 4).T + weights[52:]
        return F.mse_loss(outputs, batch[1]) + LAMBDA / 2 * (weights[:36] - flat(anchor)).square().sum()

    weights = torch.cat([flat(pretrained.encoder), flat(pretrained.head)]).detach()
    g, hessian = torch.func.grad(finetuned_loss)(weights), torch.func.hessian(pretrained_loss)(weights)
    dense = LAMBDA * torch.linalg.solve(hessian + DAMPING * torch.eye(56, dtype=torch.float64), g)[:36]
    return float((flat(gradient) - dense).norm() / dense.norm())


def flat(params):
    return torch.cat([value.flatten() for value in params.values()])


def main(seed=0, iterations=150):
    problem, pretrain, train, validation, test = make(seed)
    adam = metapt.OptimizerSpec("Adam", {"lr": 0.01})

    def batches():
        loader = DataLoader(TensorDataset(*pretrain), batch_size=200, shuffle=True)
        return metapt.LoaderBatches(pretrain=loader, train=[train], validation=[validation])

    def accuracy(pretrained):
        head = metapt.finetune_head(problem, pretrained, problem.head, [train, validation])
        logits = problem.encode(pretrained.encoder, test) @ head["weight"].T + head["bias"]
        return 100 * float(((logits.squeeze(1) > 0) == (test[1] > 0)).double().mean())

    plain = metapt.Pretrainer(problem, batches(), problem.pretrained, adam)
    plain.run(problem.pretrained.encoder, 300, "plain PT")
    anchor = {name: value.detach().clone() for name, value in plain.pretrained.encoder.items()}

    data = {"pretrain_batch": pretrain, "train_batches": [], "validation_batch": train}
    solvers = {"inverse": ConjugateGradient(1e-13, 500, DAMPING), "finetuning": Unroll(0, Adam(0.01))}
    gradient = hypergradient(problem, plain.pretrained, anchor, problem.head, **data, **solvers).gradient
    distance = gap(problem.head, plain.pretrained, anchor, pretrain, train, gradient)
    print(f"The hypergradient of the anchor is {distance:.0e} of its norm away from that of dense matrices")
    assert distance < 1e-9

    still = metapt.Pretrainer(problem, batches(), plain.pretrained, adam)
    still.run(anchor, 5 * iterations, "PT with a fixed anchor")
    solvers["inverse"] = ConjugateGradient(0.1, 5, DAMPING)  # at most five products with the Hessian
    both = {"pretrain_optimizer": adam, "meta_optimizer": metapt.OptimizerSpec("Adam", {"lr": META_LR})}
    settings = metapt.MetaSettings(iterations, 5, **solvers, **both, head_steps_between_updates=1)
    loop = metapt.MetaPretraining(problem, batches(), plain.pretrained, anchor, problem.head, settings)
    print(loop.run("BiSSL"))
    found = [accuracy(pretrained) for pretrained in (plain.pretrained, still.pretrained, loop.pretrained)]
    print("Accuracy: {:.1f} % after plain PT, {:.1f} % with a fixed anchor, {:.1f} % with BiSSL".format(*found))
    return distance, found


if __name__ == "__main__":
    main()
