"""What the jobs of this domain cost: the steps that they are made of, and how to take one; see `metapt.estimate.work`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from metapt.domains.ppi import config as ppi
from metapt.domains.ppi.arms import Setting, meta_loop, pretrain
from metapt.domains.ppi.data.dataset import TRAIN_SHARE, VALIDATION_SHARE, PpiDataset, on_device
from metapt.domains.ppi.data.graphs import EVIDENCE, Graphs, pack
from metapt.domains.ppi.data.sources import folder, string_names, string_of
from metapt.domains.ppi.features import CHUNK, features_of
from metapt.domains.ppi.finetune import Sets, full_transfer
from metapt.domains.ppi.gin import Encoder, initial_pretrained
from metapt.domains.ppi.needs import FinetuneKey, PretrainKey, encoders, needs
from metapt.domains.ppi.settings import FULL_ACCESS
from metapt.estimate.finetuning import HEADS_STEPS, auroc_step, heads_step
from metapt.estimate.work import OPEN, RUN_BYTES, Run, Step, added, summary
from metapt.hypergrad import Pretrained
from metapt.training.checkpoint import Checkpoint
from metapt.training.seeds import generator


class Size(NamedTuple):
    """Of a prepared source.

    Attributes:
        graphs: all of them.
        tested: share of the test species.
        nodes, edges: per graph; edges are undirected.
        coarse, fine: tasks.
    """

    graphs: int
    tested: float
    nodes: int
    edges: int
    coarse: int
    fine: int


STRING_PROTEINS = {
    9606: 18_000,
    3702: 20_000,
    7955: 18_000,
    7227: 10_000,
    10090: 17_000,
    6239: 15_000,
    4932: 6_000,
    511145: 2_700,
    224308: 2_000,
}
"""With links and terms, about; other species are taken to have as many as the mean."""
_STRING_FILLED, _STRING_DENSITY, _STRING_TASKS = 0.6, 0.4, 200
"""Of two bacteria's ego graphs: nodes of those allowed, links of all pairs; coarse tasks per species."""
SIZES = {"simulated": Size(1500, 0.2, 11, 23, 52, 8), "hu2020": Size(88_000, 0.125, 40, 350, 5000, 40)}
RAW_BYTES = {"simulated": 0.2e6, "hu2020": 2e9}
STRING_FILE_BYTES = 60e6
"""Of a species; the publisher names no sizes before the download."""
SECONDS_PER_GRAPH = 1e-3
"""Of preparation."""

_TEST, _OTHERS = 1, 2  # species of random graphs
_FEWEST = 64
"""FT graphs of a meta-update that stand for more. Other steps are timed whole: the optimiser's part of them does not shrink."""
_OPENED = 2000  # graphs that are opened at most; the time for more grows with their number
_MINIBATCHES = 2
_PERIOD_STEPS = 10  # PT steps in a period of co-training

ENCODE = f"{CHUNK} graphs through the encoder"
FINETUNE = f"{_MINIBATCHES} FT steps of the whole network"
AUROC = "validation AUROC"
HEADS = f"{HEADS_STEPS} steps of linear heads"
SUPERVISED = "PT step"
PLAIN, UPDATE = "PT step of a loop", "PT step and meta-update"
PERIOD = f"{_PERIOD_STEPS} PT steps"


def runs(section: ppi.PpiConfig, experiment: str) -> list[Run]:
    """See `metapt.estimate.work.Costs.runs`."""
    needed = needs(section, experiment)
    keys = dict.fromkeys(needed.pretrain)
    for each in needed.finetune:
        keys |= dict.fromkeys(encoders(section, each))
    for key in list(keys):
        keys |= dict.fromkeys(_sources(section, key))
    found = [_pretrain_run(section, key) for key in keys]
    found += [_finetune_run(section, key) for key in needed.finetune]
    found += [_cka_run(section, needed.pretrain) for _ in needed.study]
    return [*found, summary("ppi", experiment, found)]


def data_runs(section: ppi.PpiConfig, raw_bytes: Mapping[str, int]) -> list[Run]:
    """See `metapt.estimate.work.Costs.data_runs`."""
    size, source = size_of(section), section.source
    string = STRING_FILE_BYTES * len(string_names(string_of(section))) / 2
    raw = Run(
        f"raw/{folder(section)}",
        "raw data",
        seconds=2 if source == "simulated" else 0,
        trains=False,
        output_bytes=raw_bytes.get(source, RAW_BYTES.get(source, string)),
    )
    prepared = Run(
        f"ppi/data/{source}",
        "prepared data",
        seconds=size.graphs * SECONDS_PER_GRAPH,
        trains=False,
        output_bytes=size.graphs * (5 * size.edges + (size.coarse + size.fine) / 8),
        after=(raw.name,),
    )
    return [raw, prepared]


def steps(section: ppi.PpiConfig, device: str) -> list[Step]:
    """See `metapt.estimate.work.Costs.steps`."""
    size, settings = size_of(section), section.finetune
    _, validation, _ = _parts(section)
    width, heads = 2 * section.network.width, section.finetune_seeds
    found = {
        OPEN: _open_step(section, device),
        ENCODE: _encode_step(section, device),
        FINETUNE: _finetune_step(section, device),
        HEADS: heads_step(HEADS, width, size.fine, settings.batch_size, heads, settings.linear_lrs, device),
        AUROC: auroc_step(AUROC, validation, size.fine, heads * len(settings.linear_lrs), device),
    }
    for name, arm in section.arms.items():
        for step in _arm_steps(section, name, arm, device):
            found.setdefault(step.name, step)
    return list(found.values())


def size_of(section: ppi.PpiConfig) -> Size:
    """What the source has, as far as that is known before it is there."""
    if section.source != "string":
        return SIZES[section.source]
    mean = round(sum(STRING_PROTEINS.values()) / len(STRING_PROTEINS))
    graphs = {taxon: STRING_PROTEINS.get(taxon, mean) for taxon in section.string.species}
    nodes = max(2, round(_STRING_FILLED * section.string.ego.max_nodes))
    tasks = section.string.tasks
    return Size(
        sum(graphs.values()),
        sum(graphs[taxon] for taxon in section.test_species) / sum(graphs.values()),
        nodes,
        max(1, round(_STRING_DENSITY * nodes * (nodes - 1) / 2)),
        min(_STRING_TASKS * len(graphs), tasks.coarse or _STRING_TASKS * len(graphs)),
        tasks.fine,
    )


# Jobs


def _parts(section: ppi.PpiConfig) -> tuple[int, int, int]:
    """FT training, validation and test graphs; PT sees the first two and as many as the third."""
    size = size_of(section)
    own = round(size.graphs * size.tested)
    train, validation = (int(share * (size.graphs - own)) for share in (TRAIN_SHARE, VALIDATION_SHARE))
    return train, validation, own // 2


def _sources(section: ppi.PpiConfig, key: PretrainKey) -> list[PretrainKey]:
    """The run whose learned weights this one takes."""
    source = ppi.weights_of(section.arms[key.arm])
    return [] if source is None else [key._replace(arm=source)]


def _held_bytes(section: ppi.PpiConfig) -> float:
    """Arrays of the file, and the tensors that are made of them."""
    size = size_of(section)
    return size.graphs * (size.edges * (5 + 2 * 4) + size.nodes * (8 + 40) + (size.coarse + size.fine) / 8)


def _folder(key: PretrainKey) -> str:
    return f"ppi/pretrain/{key.arm}/{key.setting}/seed{key.seed}"


def _pretrain_run(section: ppi.PpiConfig, key: PretrainKey) -> Run:
    arm = section.arms[key.arm]
    return Run(
        _folder(key),
        "PPI PT",
        added({OPEN: 1}, _pretrain_steps(section, key.arm, arm)),
        held_bytes=_held_bytes(section),
        output_bytes=_encoder_bytes(section) + RUN_BYTES,
        after=(f"ppi/data/{section.source}", *map(_folder, _sources(section, key))),
    )


def _pretrain_steps(section: ppi.PpiConfig, name: str, arm: ppi.Arm) -> dict[str, float]:
    train, validation, test = _parts(section)
    per_epoch = max(1, (train + validation + test) // section.pretrain.batch_size)
    total = section.pretrain.epochs * per_epoch
    online = {ENCODE: (section.pretrain.online_evaluations + 1) * (validation + test) / CHUNK}
    match arm:
        case ppi.NoPretraining():
            return {}
        case ppi.Supervised():
            return {SUPERVISED: total}
        case ppi.CoTrain() | ppi.LearnedWeights():
            return added({_kind(section, name, PERIOD): total / _PERIOD_STEPS}, online)
        case ppi.Meta():
            iterations = max(1, total // arm.pretrain_steps)
            updates = iterations - math.ceil(arm.warmup_epochs * per_epoch / arm.pretrain_steps)
            plain, update = (_kind(section, name, what) for what in (PLAIN, UPDATE))
            trains_head = arm.unroll == "head" and arm.unroll_steps > 0
            return added({plain: iterations * arm.pretrain_steps - updates, update: updates}, online if trains_head else {})


def _finetune_run(section: ppi.PpiConfig, key: FinetuneKey) -> Run:
    settings = section.finetune
    train, validation, test = _parts(section)
    pretrained = section.pretrain_seeds
    different = len(encoders(section, key)) or pretrained * section.finetune_seeds
    work: dict[str, float] = {OPEN: 1}
    if "linear_evaluation" in section.evaluations:
        taken = math.ceil(train / settings.batch_size) * settings.linear_epochs * different
        encoded = {ENCODE: different * (train + validation + test) / CHUNK}
        work = added(work, encoded, {HEADS: taken / HEADS_STEPS, AUROC: settings.linear_epochs * different})
    if "full_transfer" in section.evaluations:
        tuned = pretrained * (section.finetune_seeds - 1 + len(settings.lrs))
        encoded = {ENCODE: tuned * (settings.epochs * validation + test) / CHUNK}
        work = added(work, encoded, {FINETUNE: tuned * settings.epochs * train / settings.batch_size / _MINIBATCHES})
    return Run(
        f"ppi/{key.name}",
        "PPI FT",
        work,
        held_bytes=_held_bytes(section),
        output_bytes=RUN_BYTES,
        after=(f"ppi/data/{section.source}", *map(_folder, encoders(section, key))),
    )


def _cka_run(section: ppi.PpiConfig, keys: list[PretrainKey]) -> Run:
    study = section.representations
    assert study is not None
    return Run(
        "ppi/representations/cka",
        "PPI study",
        {OPEN: 1, ENCODE: len(keys) * study.graphs / CHUNK},
        held_bytes=_held_bytes(section),
        output_bytes=RUN_BYTES,
        after=tuple(map(_folder, keys)),
    )


def _encoder_bytes(section: ppi.PpiConfig) -> float:
    return _network_bytes(section.network, size_of(section).coarse)


@cache
def _network_bytes(network: ppi.Network, tasks: int) -> float:
    made = initial_pretrained(network.layers, network.width, tasks, generator("ppi weights", 0))
    return float(sum(value.nbytes for part in made for value in part.values()))


def _kind(section: ppi.PpiConfig, name: str, what: str) -> str:
    """The step of the first arm that takes the same steps: rates are no matter."""
    like = next(other for other, arm in section.arms.items() if _shape(arm) == _shape(section.arms[name]))
    return f"{what}, {like}"


def _shape(arm: ppi.Arm) -> dict[str, object]:
    """What a step's time depends on."""
    exclude = {"lr", "pretrain_steps", "warmup_epochs", "finetune_lr", "weights_lr", "meta_optimizer", "meta_settings"}
    return arm.model_dump(exclude=exclude)


# Steps


def random_graphs(section: ppi.PpiConfig, count: int) -> Graphs:
    """Graphs whose sizes lie within a quarter of the mean, with random edges, labels and species."""
    size, random = size_of(section), np.random.default_rng(0)
    nodes = np.maximum(2, random.integers(round(0.75 * size.nodes), round(1.25 * size.nodes) + 1, count))
    graph = np.repeat(np.arange(count), np.maximum(1, np.round(size.edges * (nodes / size.nodes) ** 2)).astype(np.int64))
    first = random.integers(0, nodes[graph])
    second = (first + random.integers(1, nodes[graph])) % nodes[graph]
    tested = np.arange(count) % max(2, round(1 / size.tested)) == 0
    return Graphs(
        node_offsets=np.concatenate([[0], np.cumsum(nodes)]),
        edge_offsets=np.concatenate([[0], np.cumsum(np.bincount(graph, minlength=count))]),
        edges=np.stack([np.minimum(first, second), np.maximum(first, second)], 1).astype(np.uint16),
        bits=random.integers(1, 2**EVIDENCE, len(graph)).astype(np.uint8),
        centre=random.integers(0, nodes).astype(np.uint16),
        species=np.where(tested, _TEST, _OTHERS).astype(np.int32),
        coarse=pack(random.random((count, size.coarse)) < 0.1),
        fine=pack(random.random((count, size.fine)) < 0.3),
        tasks=np.array([size.coarse, size.fine]),
    )


def _dataset(section: ppi.PpiConfig, count: int, device: str) -> PpiDataset:
    return on_device(random_graphs(section, max(64, count)), device)


def _setting(section: ppi.PpiConfig, count: int, batch: int, device: str) -> Setting:
    """So many graphs, one epoch of minibatches of so many."""

    def checkpoint() -> Checkpoint:
        raise AssertionError("steps keep no checkpoints")

    return Setting(
        dataset=_dataset(section, count, device),
        network=section.network,
        pretrain=section.pretrain.model_copy(update={"batch_size": batch, "epochs": 1, "online_evaluations": 0}),
        test_species=[_TEST],
        seed=0,
        name=FULL_ACCESS,
        learned=None,
        checkpoint=checkpoint,
    )


def _arm_steps(section: ppi.PpiConfig, name: str, arm: ppi.Arm, device: str) -> list[Step]:
    match arm:
        case ppi.Supervised():
            return [_supervised_step(section, device)]
        case ppi.CoTrain() | ppi.LearnedWeights():
            return [_period_step(section, name, arm, device)]
        case ppi.Meta():
            return [_loop_step(section, name, arm, device, update) for update in (False, True)]
    return []


def _supervised_step(section: ppi.PpiConfig, device: str) -> Step:
    """As of a loop that never comes to its first meta-update."""
    return replace(_loop_step(section, "", ppi.Meta(), device, False), name=SUPERVISED)


def _loop_step(section: ppi.PpiConfig, name: str, arm: ppi.Meta, device: str, update: bool) -> Step:
    """A PT step of the meta-PT loop, with the head's steps; or with a meta-update."""
    everything = sum(_parts(section)[:2])

    def prepare(share: float) -> Callable[[], object]:
        def part(value: int) -> int:
            return max(8, round(share * value))

        changes: dict[str, object] = {"pretrain_steps": 1, "warmup_epochs": 0, "batch_size": part(arm.batch_size or everything)}
        if arm.hypergradient_batch is not None:
            changes["hypergradient_batch"] = part(arm.hypergradient_batch)
        smaller = arm.model_copy(update=changes)
        minibatch, batch, size = (
            part(arm.batch_size or everything),
            max(4, round(share * section.pretrain.batch_size)),
            size_of(section),
        )
        labelled = min(everything, arm.folds * minibatch if arm.folds else math.ceil(minibatch / VALIDATION_SHARE))
        count = max(labelled, 8 * batch, part(arm.hypergradient_batch or 0)) / (1 - size.tested)
        loop = meta_loop(_setting(section, min(size.graphs, math.ceil(count)), batch, device), smaller)
        if not update:
            loop.settings = replace(loop.settings, iterations=2**30, warmup=2**29)
        return loop.iterate

    smallest = min(1.0, _FEWEST / (arm.batch_size or everything)) if update else 1.0
    return Step(_kind(section, name, UPDATE if update else PLAIN) if name else "", prepare, smallest)


def _period_step(section: ppi.PpiConfig, name: str, arm: ppi.CoTrain | ppi.LearnedWeights, device: str) -> Step:
    """A whole PT run of some steps."""
    changes: dict[str, object] = {}
    if isinstance(arm, ppi.LearnedWeights):
        changes = {"warmup_epochs": 0, "steps": min(arm.steps, _PERIOD_STEPS)}

    def prepare(share: float) -> Callable[[], object]:
        batch, size = section.pretrain.batch_size, size_of(section)
        train = _PERIOD_STEPS * batch / (1 - size.tested / 2)
        setting = _setting(section, math.ceil(train) + 1, batch, device)

        def work() -> None:
            with tempfile.TemporaryDirectory() as folder:
                pretrain(
                    arm.model_copy(update=changes),
                    replace(setting, checkpoint=lambda: Checkpoint(Path(folder, "checkpoint.pt"), "estimate")),
                )

        return work

    return Step(_kind(section, name, PERIOD), prepare)


def _finetune_step(section: ppi.PpiConfig, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        batch = section.finetune.batch_size
        dataset = _dataset(section, _MINIBATCHES * batch + 16, device)
        train, few = torch.arange(_MINIBATCHES * batch), torch.arange(_MINIBATCHES * batch, _MINIBATCHES * batch + 16)
        sets = Sets(dataset, train, few, few, torch.arange(dataset.fine_tasks))
        start = _initial(section, device)
        settings = section.finetune.model_copy(update={"epochs": 1, "batch_size": batch})
        return partial(
            full_transfer,
            Encoder(section.network.layers, section.network.width),
            start.encoder,
            start.buffers,
            sets,
            settings,
            settings.lrs[0],
            generator("ppi finetune", "estimate"),
        )

    return Step(FINETUNE, prepare)


def _encode_step(section: ppi.PpiConfig, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        start, dataset = _initial(section, device), _dataset(section, CHUNK, device)
        encoder, network = Encoder(section.network.layers, section.network.width), {**start.encoder, **start.buffers}
        return lambda: features_of(encoder, network, dataset, torch.arange(CHUNK))

    return Step(ENCODE, prepare)


def _open_step(section: ppi.PpiConfig, device: str) -> Step:
    """From arrays to tensors."""
    count = size_of(section).graphs

    def prepare(share: float) -> Callable[[], object]:
        graphs = random_graphs(section, max(64, round(share * count)))
        return lambda: on_device(graphs, device)

    return Step(OPEN, prepare, min(1.0, _OPENED / count))


def _initial(section: ppi.PpiConfig, device: str) -> Pretrained:
    network = section.network
    return initial_pretrained(network.layers, network.width, size_of(section).coarse, generator("ppi weights", 0)).to(device)
