"""Learn how strong each augmentation of SimCLR should be, on signals whose class one of the augmentations destroys."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import metapt
from metapt.hypergrad import FittedHead, Identity

START = {"warp": 0.5, "crop": 0.5, "scale": 0.5, "jitter": 0.2}  # strengths, between 0 and 1
LENGTH, FEATURES, TEMPERATURE = 64, 6, 0.2
TIME = torch.arange(LENGTH) / LENGTH


def signals(count):
    """Return signals of two channels, [count, 2, LENGTH], and their classes: two frequencies. Amplitudes are random."""
    labels = torch.randint(2, (count,)).float()

    def wave(frequency):
        return torch.sin(2 * math.pi * (frequency[:, None] * TIME + torch.rand(count, 1)))

    slow, fast = wave(3.6 + 1.5 * labels + 0.8 * torch.rand(count)), wave(10 + 15 * torch.rand(count))
    return torch.randn(count, 1, 1).exp() * torch.stack([slow + fast / 2, (slow + fast) / 2], dim=1), labels


def view(x, strength):
    """Return augmented signals, a differentiable function of the strengths."""

    def random():
        return 2 * torch.rand(len(x), 1, 1) - 1

    place = (LENGTH * ((TIME - 0.5) * (strength["warp"] * random()).exp() + 0.5)).clamp(0, LENGTH - 1.001)
    before, share = place.floor().long().expand(-1, 2, -1), place - place.floor()
    x = (1 - share) * x.gather(2, before) + share * x.gather(2, before + 1)
    x = x * torch.sigmoid(((TIME - torch.rand(len(x), 1, 1)).abs() - strength["crop"] / 4) / 0.05)
    x = x * (2 * strength["scale"] * random()).exp()
    # The jitter is relative to the signal, whose size is not to be learned. metapt warns of the detach, which is meant.
    size = x.detach().square().mean((1, 2), keepdim=True).sqrt()
    return x + strength["jitter"] * size * torch.randn_like(x)


def strengths(meta):
    return {name: torch.sigmoid(value) for name, value in meta.items()}


def pretrain_loss(encoder, head, meta, batch):
    z = F.normalize(head(encoder(torch.cat([view(batch[0], strengths(meta)) for _ in range(2)]))), dim=1)
    similarity = (z @ z.T / TEMPERATURE).fill_diagonal_(-1e9)
    return F.cross_entropy(similarity, torch.arange(len(z)).roll(len(z) // 2))


def finetune_loss(head, features, batch):
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), batch[1])


def main(seed=0, iterations=100):
    torch.manual_seed(seed)
    convolutions = nn.Conv1d(2, 16, 9, stride=2, padding=4), nn.Conv1d(16, FEATURES, 5, stride=2, padding=2)
    pooled = nn.AdaptiveAvgPool1d(1), nn.Flatten()
    encoder = nn.Sequential(convolutions[0], nn.SiLU(), convolutions[1], nn.SiLU(), *pooled)
    head, finetune_head = nn.Sequential(nn.Linear(FEATURES, 16), nn.SiLU(), nn.Linear(16, 8)), nn.Linear(FEATURES, 1)
    losses = {"pretrain_loss": pretrain_loss, "finetune_loss": finetune_loss}
    problem = metapt.ModuleProblem(encoder, head, finetune_head, **losses)
    (x, _), labelled, (x_test, y_test) = signals(2000), [signals(500), signals(500)], signals(2000)
    adam, adam_meta = (metapt.OptimizerSpec("Adam", {"lr": lr}) for lr in (0.01, 0.1))
    solvers = Identity(), FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3)
    settings = metapt.MetaSettings(iterations, 2, 10, *solvers, pretrain_optimizer=adam, meta_optimizer=adam_meta)
    meta = {name: torch.tensor(value).logit() for name, value in START.items()}

    def batches():
        parts = {size: [(part,) for part in x.split(size)] for size in (200, 500)}
        sets = {"train": labelled[:1], "validation": labelled[1:]}
        return metapt.LoaderBatches(pretrain=parts[200], hypergradient=parts[500], **sets)

    def accuracy(pretrained):
        finetune_head.load_state_dict(metapt.finetune_head(problem, pretrained, problem.head, labelled))
        pretrained.load_into(encoder, head)
        return 100 * float(((finetune_head(encoder(x_test)).squeeze(1) > 0) == (y_test > 0)).float().mean())

    loop = metapt.MetaPretraining(problem, batches(), problem.pretrained, meta, problem.head, settings)
    plain = metapt.Pretrainer(problem, batches(), problem.pretrained, adam)
    print(loop.run())
    plain.run(meta, count=2 * iterations, label="PT with fixed strengths")
    learned = {name: value.item() for name, value in strengths(loop.meta).items()}
    print("Strengths:", {name: f"{START[name]} -> {value:.2f}" for name, value in learned.items()})
    found = [accuracy(pretrained) for pretrained in (plain.pretrained, loop.pretrained)]
    print(f"Linear evaluation: {found[0]:.1f} % with the first strengths, {found[1]:.1f} % with learned ones")
    return learned, found


if __name__ == "__main__":
    main()
