"""Learn how much noise each input feature should get in pre-training, where only some features matter later."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from metapt import LoaderBatches, MetaPretraining, MetaSettings, ModuleProblem, OptimizerSpec
from metapt.hypergrad import FittedHead, Neumann

torch.manual_seed(0)
x = torch.randn(5000, 8)
targets = x[:, :4] + 0.5 * x[:, 4:] @ torch.randn(4, 4).abs()  # of PT: they depend on all eight features
x_ft = torch.randn(200, 8)
labels = (x_ft[:, :4].sum(1) > 0).float()  # of FT: they depend on the first four


def pretrain_loss(encoder, head, meta, batch):
    x, y = batch
    share = torch.sigmoid(meta["noise"])  # of a feature's variance: 0 is the feature itself, 1 nothing but noise
    return F.mse_loss(head(encoder((1 - share).sqrt() * x + share.sqrt() * torch.randn_like(x))), y)


def finetune_loss(head, features, batch):
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), batch[1])


encoder, head, finetune_head = nn.Sequential(nn.Linear(8, 4), nn.Tanh()), nn.Linear(4, 4), nn.Linear(4, 1)
problem = ModuleProblem(encoder, head, finetune_head, pretrain_loss=pretrain_loss, finetune_loss=finetune_loss)
train, validation = [(x_ft[:100], labels[:100])], [(x_ft[100:], labels[100:])]
loader = DataLoader(TensorDataset(x, targets), batch_size=200, shuffle=True)
batches = LoaderBatches(pretrain=loader, train=train, validation=validation)
adam, adam_meta = OptimizerSpec("Adam", {"lr": 0.01}), OptimizerSpec("Adam", {"lr": 0.1})
solvers = Neumann(terms=5, step_size=0.1), FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3)
settings = MetaSettings(200, 5, 40, *solvers, pretrain_optimizer=adam, meta_optimizer=adam_meta)
start, meta = problem.pretrained, {"noise": torch.zeros(8)}  # sigmoid(0): half noise in every feature
loop = MetaPretraining(problem, batches, start, meta, problem.head, settings)
print(loop.run())
print("Learned noise:", [round(share, 2) for share in torch.sigmoid(loop.meta["noise"]).tolist()])
loop.pretrained.load_into(encoder, head)
