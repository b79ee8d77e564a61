"""Learn how much noise each input feature should get in pre-training, where only some features matter later."""

import sys
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metapt.hypergrad import FittedHead, Neumann, Params, Pretrained
from metapt.training.meta import MetaPretraining, MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator
from metapt.training.supervised import finetune_head

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
        self.random, self.other = generator("noise levels", seed), generator("noise levels", "hypergradients", seed)
        self.x = self.draw(5000, FEATURES)
        self.targets = self.x[:, :USEFUL] + 0.5 * self.x[:, USEFUL:] @ self.draw(FEATURES - USEFUL, USEFUL).abs()
        self.tune, self.check, self.test = self.labelled(100), self.labelled(100), self.labelled(5000)
        self.start = Pretrained({"weight": 0.3 * self.draw(FEATURES, CODE)}, {"weight": 0.3 * self.draw(CODE, USEFUL)})

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def labelled(self, size: int) -> Batch:
        x = self.draw(size, FEATURES)
        return Batch(x, (x[:, :USEFUL].sum(1) > 0).float())

    def noisy(self, random: torch.Generator) -> Batch:
        some = torch.randint(len(self.x), [200], generator=random)
        return Batch(self.x[some], self.targets[some], torch.randn(200, FEATURES, generator=random))

    def pretrain(self) -> Batch:
        return self.noisy(self.random)

    def hypergradient(self) -> Batch:  # from a generator of its own: all arms take PT steps on the same minibatches
        return self.noisy(self.other)

    def train(self) -> Batch:
        return self.tune

    def validation(self) -> Batch:
        return self.check

    def state_dict(self) -> dict[str, Tensor]:
        return {"random": self.random.get_state(), "other": self.other.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.random.set_state(state["random"])
        self.other.set_state(state["other"])


problem, inverse, fit = NoisyInputs(), Neumann(5, step_size=0.1), FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3)
meta, head = {"noise": torch.zeros(FEATURES)}, {"weight": torch.zeros(CODE)}  # sigmoid(0): half noise


def main(seed: int = 0) -> tuple[Tensor, dict[str, float]]:
    pt, phi, accuracy = OptimizerSpec("Adam", {"lr": 0.01}), OptimizerSpec("Adam", {"lr": 0.1}), {}
    data, settings = Data(seed), MetaSettings(200, 5, 40, inverse, fit, pretrain_optimizer=pt, meta_optimizer=phi)
    loop = MetaPretraining(problem, data, data.start, meta, head, settings)
    diagnosis, encoders = loop.run("learned noise"), {"learned noise": loop.pretrained}
    for name, fixed in {"half noise": 0.0, "no noise": -12.0}.items():  # plain PT on the same 200 times 5 minibatches
        data = Data(seed)
        plain = Pretrainer(problem, data, data.start, pt)
        plain.run({"noise": torch.full([FEATURES], fixed)}, count=1000, label=name)
        encoders[name] = plain.pretrained
    for name, pretrained in encoders.items():
        best = finetune_head(problem, pretrained, head, [data.tune, data.check], l2=0.01)
        guess = problem.encode(pretrained.encoder, data.test) @ best["weight"] > 0
        accuracy[name] = float(100 * (guess == data.test.y).float().mean())
        print(f"FT accuracy with {name}: {accuracy[name]:.1f} %")
    noise = torch.sigmoid(loop.averaged_meta["noise"])
    print(f"{diagnosis}\nLearned noise: useful features {noise[:USEFUL].mean():.2f}, rest {noise[USEFUL:].mean():.2f}")
    return noise, accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
