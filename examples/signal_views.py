"""Learn how strong each augmentation should be for SimCLR on signals, where one channel matters later."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import metapt
from metapt.hypergrad import FittedHead, Neumann

CHANNELS = ("first channel", "second channel")


def signals(count):
    """Return two sines of random phase and frequency, [count, 2, 32], and whether the first one is fast."""
    frequency = 1 + 4 * torch.rand(count, 2, 1)
    phase = torch.rand(count, 2, 1)
    waves = 2**0.5 * torch.sin(2 * torch.pi * (frequency * torch.linspace(0, 1, 32) + phase))
    return waves, (frequency[:, 0, 0] > 3).float()


torch.manual_seed(0)
unlabelled = TensorDataset(signals(2000)[0])
train, validation = signals(100), signals(100)
encoder = nn.Sequential(
    nn.Conv1d(2, 16, kernel_size=7, stride=2),
    nn.Softplus(),
    nn.Conv1d(16, 16, kernel_size=5, stride=2),
    nn.Softplus(),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(16, 2),
)
head, finetune_head = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 8)), nn.Linear(2, 1)


def strengths(meta):
    return torch.sigmoid(meta["noise"])  # the share of noise in the variance of each channel


def view(x, strength):
    """Return one view of each signal [n, 2, 32]: shifted in time, and with another noise in each channel."""
    shift = int(torch.randint(x.shape[2], ()))
    share = strength[:, None]
    return (1 - share).sqrt() * x.roll(shift, 2) + share.sqrt() * torch.randn_like(x)


def pretrain_loss(encoder, head, meta, batch):
    """Return NT-Xent: the other view of a signal is to be told from all other views."""
    strength = strengths(meta)
    z = F.normalize(head(encoder(torch.cat([view(batch[0], strength), view(batch[0], strength)]))), dim=1)
    similar = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(similar, torch.arange(len(z)).roll(len(batch[0])))


def finetune_loss(head, features, batch):
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), batch[1])


def main(iterations=150):
    problem = metapt.ModuleProblem(
        encoder, head, finetune_head, pretrain_loss=pretrain_loss, finetune_loss=finetune_loss
    )
    loader = DataLoader(unlabelled, batch_size=100, shuffle=True, drop_last=True)
    batches = metapt.LoaderBatches(pretrain=loader, train=[train], validation=[validation])
    settings = metapt.MetaSettings(
        iterations,
        pretrain_steps=5,
        warmup=iterations // 5,
        inverse=Neumann(terms=5, step_size=0.03),
        finetuning=FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3),
        pretrain_optimizer=metapt.OptimizerSpec("Adam", {"lr": 0.01}),
        meta_optimizer=metapt.OptimizerSpec("Adam", {"lr": 0.2}),
    )
    meta = {"noise": torch.zeros(2)}  # half noise in each channel
    loop = metapt.MetaPretraining(problem, batches, problem.pretrained, meta, problem.head, settings)
    print(loop.run())
    learned = strengths(loop.meta).tolist()
    print("Share of noise:", ", ".join(f"{name} {value:.2f}" for name, value in zip(CHANNELS, learned, strict=True)))
    return learned


if __name__ == "__main__":
    main()
