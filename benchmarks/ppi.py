"""Measure time and memory of multitask PT on protein graphs: plain PT, meta-PT, bare encoder, GIN with messages.

    python benchmarks/ppi.py [--shapes small] [--rounds 3] [--threads N] [--device cuda] [--mirror DIR] [--json F]

By default it ends within two minutes on two CPU cores, with `--shapes paper` in a few minutes.

Graphs are random, with the sizes of ego graphs; their content does not affect the results. Each row is printed when it
is measured. In each round the steps of a row take turns: a plain PT step and the bare encoder's forward and backward
pass on a prepared batch with prepared dropout masks (and without masks, to measure their cost), the same step with a
GIN with a message per edge and torch-geometric's loader, or meta-updates with Neumann 1, with the identity, and with
Neumann 1 whose PT gradient serves the next PT step. A period is 10 PT steps and a meta-update. Ratios are of times in
the same round. Peak memory is that of a first PT step and the row's first step, on a CPU in a process of their own that
returns freed memory at once; it includes the optimiser's state. "Recomputed" is the meta-update with Neumann 1 and
`recompute: true`. `--mirror` names a folder with the STRING files of E. coli and B. subtilis and the sample of Hu et
al.'s archive. The counted limit is that of `limit.py`, measured in each round. On a GPU the plain PT step is timed in
all precisions (in TF32 as a whole), and columns are added (see `steps.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import io
import pickle
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import steps  # isort: skip  # before torch
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing, global_mean_pool

from metapt.domains.ppi import config, finetune
from metapt.domains.ppi.arms import meta_loop
from metapt.domains.ppi.data.archive import MEMBER, read_archive
from metapt.domains.ppi.data.dataset import on_device
from metapt.domains.ppi.data.ego import ego_graphs, network
from metapt.domains.ppi.data.graphs import EVIDENCE, Graphs, pack, unpack
from metapt.domains.ppi.data.string_files import read_links
from metapt.domains.ppi.gin import EDGE_BITS, GinEncoder
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.problem import MultitaskProblem
from metapt.domains.ppi.stages import PpiPretrainSettings
from metapt.hypergrad import Identity, Neumann, Pretrained
from metapt.hypergrad.layers.precision import tf32
from metapt.training.guard import HypergradientGuard
from metapt.training.recorder import Measured
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Transfer
from metapt.twostage.heads import linear_evaluation

SEEDS = 5
BATCH = 32
LIMITS = {"paper": "1.7"}
"""The bar of a plain PT step over its counted limit, by shape."""
LR = 1e-4
FINE = 40
TEST_SPECIES = 2
ARCHIVE = "bio_dataset_sample.zip"
NETWORKS = {511145: "E. coli", 224308: "B. subtilis"}


class Shape(NamedTuple):
    """Sizes of the network, numbers of PT tasks, and mean sizes of graphs."""

    width: int
    layers: int
    tasks: int
    nodes: int
    directed_edges: int


SHAPES = {"small": Shape(64, 4, 386, 49, 960), "paper": Shape(300, 5, 5000, 40, 700)}
Steps = dict[str, Callable[[], object]]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["small"])
    made.add_argument("--graphs", type=int, default=512, help="random graphs, half of them of the test species")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--threads", type=int, default=torch.get_num_threads())
    made.add_argument("--device", default="cpu")
    made.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the encoder")
    made.add_argument("--mirror", type=Path, help="folder with real data; without it the rows on them are left out")
    made.add_argument("--json", type=Path, help="write all rows here")
    return made


def main() -> None:
    arguments = parser().parse_args()
    table = steps.Table(arguments, "shape")
    with tf32(False) if table.on_gpu else nullcontext():
        for name in arguments.shapes:
            measure(table, name, arguments)
        if arguments.mirror is not None:
            ego_rows(table, arguments)
            archive_row(table, arguments)


def measure(table: steps.Table, name: str, arguments: argparse.Namespace) -> None:
    """Measure all rows of one shape."""
    setting = make_setting(SHAPES[name], arguments)
    check_equal(setting)
    made = make_steps(setting)
    steps.step_rows(table, name, made, setting.initial().vector(), LIMITS.get(name, ""))
    plain, bare, messages = table.in_turn(made["plain"], made["bare, no masks"], made["messages"])
    table.row(name, "plain PT step / bare encoder without masks", steps.ratios(plain, bare))
    table.row(name, "plain PT step / PT step with messages", steps.ratios(plain, messages), "0.4")
    one, all_seeds = table.in_turn(*(linear(setting, seeds) for seeds in (1, SEEDS)))
    table.row(name, f"linear evaluation, {SEEDS} seeds / 1 seed", steps.ratios(all_seeds, one), "1.5")
    steps.memory_rows(table, name, lambda which: table.alone(peak, which, name, arguments), ["messages"])


def peak(step: str, name: str, arguments: argparse.Namespace) -> float:
    """Return the memory in GB that a PT step and a step take on top of what the process held before."""
    torch.set_num_threads(arguments.threads)
    made = make_steps(make_setting(SHAPES[name], arguments), [step, "plain"])
    gc.collect()
    with Measured(arguments.device) as measured:
        made[step if step == "messages" else "plain"]()
        made[step]()
    return measured.peak_bytes / 1e9


def make_steps(setting: PpiSetting, names: Sequence[str] = ()) -> Steps:
    """Return the functions that are timed (all if none is named); each takes one step from where the last one ended."""
    loop = meta_loop(setting, config.PpiMeta())
    trainer = loop._pretrainer

    def bare(with_masks: bool) -> Callable[[], object]:
        ready = loop.batches.pretrain()
        keep = ready.keep if with_masks else None

        def run() -> None:
            pretrained = trainer.pretrained
            features = setting.trained()(
                {**pretrained.encoder, **pretrained.buffers}, ready.graphs, training=True, keep=keep
            )
            features.sum().backward()
            for value in pretrained.encoder.values():
                value.grad = None

        return run

    def update(inverse: Identity | Neumann, reuse: bool = False, recompute: bool = False) -> Callable[[], object]:
        # Norms with the identity are 1 / lr times those with Neumann, which one guard for both would call exploding.
        guard = HypergradientGuard(loop.settings.explosion_factor, loop.settings.max_skipped)

        def run() -> None:
            loop.problem = MultitaskProblem(setting.trained(recompute))
            loop.settings = dataclasses.replace(loop.settings, inverse=inverse, reuse_gradient=reuse)
            loop.guard = guard
            loop._meta_update()

        return run

    def plain(precision: Any) -> Callable[[], object]:
        network = setting.job.network
        problem = MultitaskProblem(GinEncoder(network.layers, network.width, precision.replace("tf32", "float32")))

        def run() -> None:
            trainer.problem = problem
            with tf32(True) if precision == "tf32" else nullcontext():
                trainer.step(loop.meta)

        return run

    makers: dict[str, Callable[[], Callable[[], object]]] = {
        "bare": lambda: bare(True),
        "bare, no masks": lambda: bare(False),
        "plain": lambda: plain(setting.job.pretrain.precision),
        "messages": lambda: message_step(setting),
        "neumann": lambda: update(Neumann(1, LR)),
        "identity": lambda: update(Identity()),
        "reused": lambda: update(Neumann(1, LR), reuse=True),
        "along": lambda: loop._pretrain_step,  # the PT step with the reused gradient
        "recomputed": lambda: update(Neumann(1, LR), recompute=True),
        "finetune": lambda: steps.finetune_step(transfer(setting)),
    }
    if setting.dataset.device == "cuda":
        makers |= {f"plain, {each}": (lambda each=each: plain(each)) for each in ("tf32", "bfloat16")}
    return {name: make() for name, make in makers.items() if name in (names or makers)}


def finetune_problem(setting: PpiSetting, settings: config.PpiFinetuning) -> finetune.PpiFinetuneProblem:
    """Return FT that is tested on all PT graphs."""
    parts, tasks = setting.parts._replace(test=setting.graphs), torch.arange(setting.dataset.fine_tasks)
    return finetune.PpiFinetuneProblem(setting.job.network, setting.dataset, parts, tasks, settings)


def transfer(setting: PpiSetting) -> Transfer:
    """Return an FT run."""
    start, settings = (
        setting.initial(),
        config.PpiFinetuning(batch_size=BATCH, precision=setting.job.pretrain.precision),
    )
    return Transfer(finetune_problem(setting, settings), start, LR, generator("benchmark", 0))


class MessageLayer(MessagePassing):  # type: ignore[misc]
    """The layer of Hu et al. as published: each edge and self loop carries [neighbour's state ; its own embedding]."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="add")
        self.edge = nn.Linear(EDGE_BITS, width)
        self.network = nn.Sequential(
            nn.Linear(2 * width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, states: Tensor, edges: Tensor, bits: Tensor) -> Tensor:
        loops = torch.arange(len(states), device=states.device).repeat(2, 1)
        loop_bits = bits.new_zeros(len(states), EDGE_BITS)
        loop_bits[:, EVIDENCE] = 1
        embedded = self.edge(torch.cat([bits, loop_bits]))
        result: Tensor = self.network(self.propagate(torch.cat([edges, loops], 1), x=states, embedded=embedded))
        return result

    def message(self, x_j: Tensor, embedded: Tensor) -> Tensor:
        return torch.cat([x_j, embedded], 1)


class MessageNetwork(nn.Module):
    """GIN with stored messages, dropout, readout and PT head."""

    def __init__(self, layers: int, width: int, tasks: int, rate: float) -> None:
        super().__init__()
        self.node = nn.Embedding(1, width)
        self.layers = nn.ModuleList(MessageLayer(width) for _ in range(layers))
        self.head = nn.Linear(2 * width, tasks)
        self.rate = rate

    def forward(self, batch: Any) -> Tensor:
        logits: Tensor = self.head(self.features(batch))
        return logits

    def features(self, batch: Any) -> Tensor:
        states = self.node(torch.zeros(batch.num_nodes, dtype=torch.int64, device=batch.edge_attr.device))
        for number, layer in enumerate(self.layers):
            states = layer(states, batch.edge_index, batch.edge_attr)
            states = states if number + 1 == len(self.layers) else F.relu(states)
            states = F.dropout(states, self.rate, self.training)
        return torch.cat([global_mean_pool(states, batch.batch), states[batch.centre_index]], 1)

    @torch.no_grad()
    def take(self, pretrained: Pretrained) -> None:
        """Copy the weights of the network in summed form."""
        self.node.weight.copy_(pretrained.encoder["node"].unsqueeze(0))
        for number, layer in enumerate(self.layers):
            parts = {
                "edge": layer.edge,
                "linear1": layer.network[0],
                "norm": layer.network[1],
                "linear2": layer.network[3],
            }
            for part, module in parts.items():
                for name, value in module.named_parameters():
                    value.copy_(pretrained.encoder[f"layers.{number}.{part}.{name}"])
        for name, value in self.head.named_parameters():
            value.copy_(pretrained.head[name])


def message_network(setting: PpiSetting) -> MessageNetwork:
    """Return the network with messages and the PT seed's weights."""
    net = MessageNetwork(
        setting.job.network.layers,
        setting.job.network.width,
        setting.dataset.coarse_tasks,
        setting.job.pretrain.dropout,
    )
    net.take(setting.initial())
    return net.to(setting.dataset.device)


def message_step(setting: PpiSetting) -> Callable[[], object]:
    """Return a PT step with that network and torch-geometric's loader and collation."""
    net = message_network(setting)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    graphs = [as_data(setting.dataset.graphs, int(index)) for index in setting.graphs]
    loader = DataLoader(graphs, batch_size=BATCH, shuffle=True, drop_last=True)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    source = batches()

    def step() -> None:
        batch = next(source).to(setting.dataset.device)
        outputs = net(batch)
        loss = F.binary_cross_entropy_with_logits(outputs, batch.labels.view_as(outputs))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


@torch.no_grad()
def check_equal(setting: PpiSetting) -> None:
    """Check that the two networks compute the same.

    Raises:
        AssertionError: they do not.
    """
    net, pretrained = message_network(setting).eval(), setting.initial()
    batch = Batch.from_data_list([as_data(setting.dataset.graphs, index) for index in range(BATCH)]).to(
        setting.dataset.device
    )
    network = {**pretrained.encoder, **pretrained.buffers}
    summed = setting.encoder(network, setting.dataset.batch(torch.arange(BATCH)), training=False)
    torch.testing.assert_close(net.features(batch), summed, rtol=1e-3, atol=1e-4)


def as_data(graphs: Graphs, index: int) -> Data:
    """Return a graph in torch-geometric's form, both directions of an edge side by side."""
    first, last = graphs.edge_offsets[index : index + 2]
    edges = graphs.edges[first:last].astype(np.int64)
    evidence = unpack(graphs.bits[first:last, None], EVIDENCE).astype(np.float32)
    bits = np.pad(evidence, ((0, 0), (0, EDGE_BITS - EVIDENCE)))
    nodes = int(graphs.node_offsets[index + 1] - graphs.node_offsets[index])
    return Data(
        num_nodes=nodes,
        edge_index=torch.from_numpy(np.stack([edges, edges[:, ::-1]], 1).reshape(-1, 2).T.copy()),
        edge_attr=torch.from_numpy(bits.repeat(2, 0)),
        # Batching offsets attributes with "index" in their name.
        centre_index=torch.tensor([int(graphs.centre[index])]),
        labels=torch.from_numpy(unpack(graphs.coarse[index : index + 1], int(graphs.tasks[0]))[0].astype(np.float32)),
    )


def linear(setting: PpiSetting, seeds: int) -> Callable[[], object]:
    """Return linear evaluation with some FT seeds."""
    start, problem = setting.initial(), finetune_problem(setting, config.PpiFinetuning())

    def run() -> None:
        linear_evaluation(problem, start, [generator("benchmark", seed) for seed in range(seeds)])

    return run


def make_setting(shape: Shape, arguments: argparse.Namespace) -> PpiSetting:
    """Return a setting with random graphs, half of them of the test species."""
    job = PpiPretrainSettings(
        arm="meta",
        arm_settings=config.ARMS["meta"],
        network=config.Network(layers=shape.layers, width=shape.width),
        pretrain=config.PpiPretraining(batch_size=BATCH, precision=arguments.precision),
        test_species=[TEST_SPECIES],
        seed=0,
        setting="full_access",
    )
    return PpiSetting(job, on_device(random_graphs(shape, arguments.graphs), arguments.device), no_checkpoint)


def random_graphs(shape: Shape, count: int) -> Graphs:
    """Return graphs with sizes within a quarter of the mean, random edges, and labels of which a tenth are 1."""
    random = np.random.default_rng(0)
    nodes = random.integers(round(0.75 * shape.nodes), round(1.25 * shape.nodes) + 1, count)
    density = shape.directed_edges / (shape.nodes * (shape.nodes - 1))
    edges = []
    for size in nodes:
        pairs = np.stack(np.triu_indices(size, 1), 1)
        edges.append(pairs[np.sort(random.permutation(len(pairs))[: round(density * len(pairs))])])
    return Graphs(
        node_offsets=np.concatenate([[0], np.cumsum(nodes)]),
        edge_offsets=np.concatenate([[0], np.cumsum([len(each) for each in edges])]),
        edges=np.concatenate(edges).astype(np.uint16),
        bits=random.integers(1, 2**EVIDENCE, sum(map(len, edges))).astype(np.uint8),
        centre=random.integers(0, nodes).astype(np.uint16),
        species=(1 + np.arange(count) % 2).astype(np.int32),
        coarse=pack(random.random((count, shape.tasks)) < 0.1),
        fine=pack(random.random((count, FINE)) < 0.1),
        tasks=np.array([shape.tasks, FINE]),
    )


def no_checkpoint() -> Any:
    raise AssertionError("a benchmark keeps no checkpoints")


def ego_rows(table: steps.Table, arguments: argparse.Namespace) -> None:
    """Measure ego graphs per second around all proteins of each network, with the settings of the default config."""
    for taxon, species in NETWORKS.items():
        links = read_links(arguments.mirror / f"{taxon}.protein.physical.links.full.v12.0.txt.gz", taxon, 400)
        net = network(len(links.proteins), links.edges, links.bits)
        rates = []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            found = ego_graphs(net, np.arange(len(net)), config.Ego())
            rates.append(len(net) / (time.perf_counter() - start))
        size = f"{len(found.nodes) / len(net):.0f} nodes, {2 * len(found.edges) / len(net):.0f} directed edges"
        table.row("real data", f"ego graphs per second (at least 1000), {species} ({size})", rates)


def archive_row(table: steps.Table, arguments: argparse.Namespace) -> None:
    """Measure the time of reading the archive's sample to the prepared form over that of torch.load alone."""
    path = arguments.mirror / ARCHIVE
    read, loaded = table.in_turn(lambda: read_archive(path), lambda: load_with_stubs(path))
    what = "reading the archive's sample / torch.load with stub classes"
    table.row("real data", what, steps.ratios(read, loaded), "3")


class Stub:
    """A replacement for the classes of torch-geometric 1.0."""


class StubUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return Stub if module.startswith("torch_geometric") else super().find_class(module, name)


def load_with_stubs(path: Path) -> Any:
    """Load the archive with torch.load, which runs its pickles."""
    stubs = argparse.Namespace(Unpickler=StubUnpickler, load=pickle.load, __name__="stubs")
    with zipfile.ZipFile(path) as archive:
        return torch.load(io.BytesIO(archive.read(MEMBER)), pickle_module=stubs, weights_only=False)


if __name__ == "__main__":
    main()
