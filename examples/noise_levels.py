"""Learn how much noise each input feature should get in PT, where only some matter later."""

import logging

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from metapt import LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec, distributed, processes_of
from metapt.hypergrad import FittedHead, Neumann

torch.set_num_threads(1)  # more of them only slow small matrices down
torch.manual_seed(0)
x = torch.randn(5000, 8)
targets = x[:, :4] + 0.5 * x[:, 4:] @ torch.randn(4, 4).abs()  # of PT: all eight matter
x_ft = torch.randn(200, 8)
labels = (x_ft[:, :4].sum(1) > 0).float()  # of FT: the first four matter


def pretrain_loss(encoder, head, meta, batch):
    x, y = batch
    share = torch.sigmoid(meta["noise"])  # of a feature's variance; 1 is nothing but noise
    noisy = (1 - share).sqrt() * x + share.sqrt() * torch.randn_like(x)
    return F.mse_loss(head(encoder(noisy)), y)


def finetune_loss(head, features, batch):
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), batch[1])


encoder, head, finetune_head = nn.Sequential(nn.Linear(8, 4), nn.Tanh()), nn.Linear(4, 4), nn.Linear(4, 1)
problem = distributed(
    ModuleProblem(encoder, head, finetune_head, pretrain_loss=pretrain_loss, finetune_loss=finetune_loss)
)
own = processes_of(problem)  # alone; of several, which torchrun starts, each has its share of the PT examples
logging.basicConfig(level=logging.WARNING if own.rank else logging.INFO, format="%(message)s")  # progress, diagnosis
train, validation = [(x_ft[:100], labels[:100])], [(x_ft[100:], labels[100:])]
loader = DataLoader(
    TensorDataset(x[own.rank :: own.size], targets[own.rank :: own.size]), batch_size=200 // own.size, shuffle=True
)
batches = LoaderBatches(pretrain=loader, train=train, validation=validation, seed=own.rank)
adam = OptimizerSpec("Adam", {"lr": 0.01})
settings = MetaSettings(
    iterations=200,
    pretrain_steps=5,
    warmup=40,
    inverse=Neumann(terms=5, step_size=0.1),
    finetuning=FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3),
    pretrain_optimizer=adam,
    meta_optimizer=OptimizerSpec("Adam", {"lr": 0.1}),
)
start, meta = problem.pretrained, {"noise": torch.zeros(8)}  # sigmoid(0): half noise
loop = MetaPretraining(problem, batches, start, meta, problem.head, settings)
loop.run()
if own.rank == 0:
    print("Learned noise:", [round(n, 2) for n in torch.sigmoid(loop.meta["noise"]).tolist()])
loop.pretrained.load_into(encoder, head)
