"""Learn the weights of the tasks of a multitask graph network, where half of the tasks are noise."""

import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_mean_pool

import metapt
from metapt.hypergrad import FittedHead, Neumann

NODES, FEATURES, TASKS, WIDTH = 10, 8, 6, 16
torch.manual_seed(0)
DIRECTIONS = torch.randn(FEATURES, 3)


def graph():
    """Return a random graph. PT targets: three means over neighbours, three of noise. FT: the first one's sign."""
    x = torch.randn(NODES, FEATURES)
    edges = torch.randint(NODES, (2, 3 * NODES))
    around = torch.zeros(NODES, FEATURES).index_add(0, edges[1], x[edges[0]]).mean(0) @ DIRECTIONS
    return Data(x=x, edge_index=edges, y=torch.cat([around, 3 * torch.randn(3)])[None], label=(around[:1] > 0).float())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = GINConv(nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))

    def forward(self, graphs):
        return global_mean_pool(torch.tanh(self.layer(graphs.x, graphs.edge_index)), graphs.batch)


encoder, head, finetune_head = Encoder(), nn.Linear(WIDTH, TASKS), nn.Linear(WIDTH, 1)


def weights(meta):
    return TASKS * torch.softmax(meta["task"], 0)  # their mean is 1


def pretrain_loss(encoder, head, meta, graphs):
    return (weights(meta) * (head(encoder(graphs)) - graphs.y) ** 2).mean()


def finetune_loss(head, features, graphs):
    return F.binary_cross_entropy_with_logits(head(features).squeeze(1), graphs.label)


def main(iterations=100):
    problem = metapt.ModuleProblem(
        encoder,
        head,
        finetune_head,
        pretrain_loss=pretrain_loss,
        finetune_loss=finetune_loss,
        encode=lambda encoder, graphs: encoder(graphs),
    )
    loaders = {name: [graph() for _ in range(size)] for name, size in (("pretrain", 600), ("train", 100))}
    batches = metapt.LoaderBatches(
        pretrain=DataLoader(loaders["pretrain"], batch_size=60, shuffle=True),
        train=DataLoader(loaders["train"], batch_size=100),
        validation=DataLoader([graph() for _ in range(100)], batch_size=100),
    )
    settings = metapt.MetaSettings(
        iterations,
        pretrain_steps=3,
        warmup=iterations // 5,
        inverse=Neumann(terms=1, step_size=0.1),
        finetuning=FittedHead(l2=0.01, cross_fit=True, tolerance=1e-3),
        pretrain_optimizer=metapt.OptimizerSpec("Adam", {"lr": 0.01}),
        meta_optimizer=metapt.OptimizerSpec("Adam", {"lr": 0.1}),
    )
    meta = {"task": torch.zeros(TASKS)}
    loop = metapt.MetaPretraining(problem, batches, problem.pretrained, meta, problem.head, settings)
    print(loop.run())
    learned = weights(loop.meta).detach()
    print("Weights of the tasks:", [round(weight, 2) for weight in learned.tolist()])
    print(f"Mean of the tasks of the graph: {learned[:3].mean():.2f}, of the noise: {learned[3:].mean():.2f}")
    return learned


if __name__ == "__main__":
    main()
