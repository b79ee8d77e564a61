"""Learn how much each class counts in pre-training on digits, where half of the classes are wrong labels."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import metapt
from metapt.hypergrad import FittedHead, Neumann

torch.manual_seed(0)
digits = load_digits()
images, classes = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
order = torch.randperm(len(images))
some, rest = order[:1200], order[1200:]

# PT: the digits 5 to 9, and half of the others, have a random label of 5 to 9. FT: which of the digits 0 to 4 is it?
wrong = (torch.rand(len(some)) < 0.5) | (classes[some] > 4)
labels = torch.where(wrong, torch.randint(5, 10, some.shape), classes[some])
known = rest[classes[rest] < 5]
sets = [(images[part], classes[part]) for part in known.chunk(3)]
loader = DataLoader(TensorDataset(images[some], labels), batch_size=100, shuffle=True)
batches = metapt.LoaderBatches(pretrain=loader, train=sets[:1], validation=sets[1:2])

encoder = nn.Sequential(
    nn.Conv2d(1, 8, kernel_size=3, padding=1),
    nn.BatchNorm2d(8),
    nn.Tanh(),
    nn.AvgPool2d(2),
    nn.Conv2d(8, 8, kernel_size=3, padding=1),
    nn.BatchNorm2d(8),
    nn.Tanh(),
    nn.AvgPool2d(2),
    nn.Flatten(),
)
head, finetune_head = nn.Linear(32, 10), nn.Linear(32, 5)


def weights(meta):
    return 10 * torch.softmax(meta["class"], 0)  # their mean is 1


def pretrain_loss(encoder, head, meta, batch):
    images, labels = batch
    losses = F.cross_entropy(head(encoder(images)), labels, reduction="none")
    return (weights(meta)[labels] * losses).mean()


def finetune_loss(head, features, batch):
    return F.cross_entropy(head(features), batch[1])


def main(iterations=60):
    problem = metapt.ModuleProblem(
        encoder, head, finetune_head, pretrain_loss=pretrain_loss, finetune_loss=finetune_loss
    )
    settings = metapt.MetaSettings(
        iterations,
        pretrain_steps=2,
        warmup=iterations // 6,
        inverse=Neumann(terms=1, step_size=0.02),
        finetuning=FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3),
        pretrain_optimizer=metapt.OptimizerSpec("Adam", {"lr": 0.005}),
        meta_optimizer=metapt.OptimizerSpec("Adam", {"lr": 0.1}),
    )
    meta = {"class": torch.zeros(10)}
    loop = metapt.MetaPretraining(problem, batches, problem.pretrained, meta, problem.head, settings)
    print(loop.run())
    learned = weights(loop.meta).detach()
    print("Weights of the classes:", [round(weight, 2) for weight in learned.tolist()])
    print(f"Mean of the digits 0 to 4: {learned[:5].mean():.2f}, of 5 to 9: {learned[5:].mean():.2f}")
    return learned


if __name__ == "__main__":
    main()
