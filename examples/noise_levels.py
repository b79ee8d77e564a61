"""Learn how much noise each input feature should get in pre-training, for a task to which only some of the features matter."""

import sys
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import FittedHead, Neumann, Params, Pretrained
from metapt.training.meta import MetaPretraining, MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.seeds import generator

USEFUL, FEATURES, CODE = 4, 8, 4  # the class depends on the first 4 features only, the PT targets on all 8


class Batch(NamedTuple):
    x: Tensor
    y: Tensor  # PT: four targets per example; FT: the class, 0 or 1
    noise: Tensor = torch.empty(0)  # PT: the draws


class NoisyInputs:
    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        share = torch.sigmoid(meta["noise"])  # of a feature's variance: 0 is the feature itself, 1 nothing but noise
        noisy = batch._replace(x=(1 - share).sqrt() * batch.x + share.sqrt() * batch.noise)
        return F.mse_loss(self.encode(pretrained.encoder, noisy) @ pretrained.head["weight"], batch.y)

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return torch.tanh(batch.x @ encoder["weight"])

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return F.binary_cross_entropy_with_logits(features @ head["weight"], batch.y)


class Data:
    def __init__(self, seed: int) -> None:
        self.random = generator("noise levels", seed)
        self.x = self.normal(5000, FEATURES)
        self.targets = self.x[:, :USEFUL] + 0.5 * self.x[:, USEFUL:] @ self.normal(FEATURES - USEFUL, USEFUL).abs()
        self.tune, self.check, self.test = self.labelled(100), self.labelled(100), self.labelled(5000)
        self.start = Pretrained({"weight": 0.3 * self.normal(FEATURES, CODE)}, {"weight": 0.3 * self.normal(CODE, USEFUL)})

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def labelled(self, size: int) -> Batch:
        x = self.normal(size, FEATURES)
        return Batch(x, (x[:, :USEFUL].sum(1) > 0).float())

    def pretrain(self) -> Batch:
        some = torch.randint(len(self.x), [200], generator=self.random)
        return Batch(self.x[some], self.targets[some], self.normal(200, FEATURES))

    def train(self) -> Batch:
        return self.tune

    def validation(self) -> Batch:
        return self.check

    def state_dict(self) -> dict[str, Tensor]:
        return {"random": self.random.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.random.set_state(state["random"])


problem, inverse, fit = NoisyInputs(), Neumann(terms=5, step_size=0.1), FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3)
meta, head = {"noise": torch.zeros(FEATURES)}, {"weight": torch.zeros(CODE)}  # sigmoid(0): half noise


def main(seed: int = 0) -> tuple[Tensor, dict[str, float]]:
    pt, phi, accuracy = OptimizerSpec("Adam", {"lr": 0.01}), OptimizerSpec("Adam", {"lr": 0.1}), {}
    for name, warmup in {"fixed": 199, "learned": 40}.items():  # of 200 iterations; PT never sees what the last one learns
        data, settings = Data(seed), MetaSettings(200, 5, warmup, inverse, fit, pretrain_optimizer=pt, meta_optimizer=phi)
        loop = MetaPretraining(problem, data, data.start, meta, head, settings)
        diagnosis = loop.run(f"{name} noise")
        guess = problem.encode(loop.pretrained.encoder, data.test) @ loop.head["weight"] > 0
        accuracy[name] = float(100 * (guess == data.test.y).float().mean())
        print(f"FT accuracy with {name} noise: {accuracy[name]:.1f} %")
    noise = torch.sigmoid(loop.averaged_meta["noise"])
    print(f"{diagnosis}\nNoise learned: useful features {noise[:USEFUL].mean():.2f}, useless ones {noise[USEFUL:].mean():.2f}")
    return noise, accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
