"""What the jobs of this domain cost: the steps that they are made of, and how to take one; see `metapt.estimate.work`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from metapt.domains.ecg import config as ecg
from metapt.domains.ecg.arms import Setting, meta_loop, policy_of, pretrain, warp_figures
from metapt.domains.ecg.data.dataset import TRAINING_SHARE, Dataset, finetune_parts
from metapt.domains.ecg.data.prepare import EcgRecords, statistics
from metapt.domains.ecg.data.sources import CLASSES, LEADS, SAMPLES, TEST_FOLD
from metapt.domains.ecg.finetune import CHUNK, Labelled, Sets, full_transfer
from metapt.domains.ecg.needs import FinetuneKey, PretrainKey, StudyKey, meta_size, needs
from metapt.domains.ecg.resnet1d import Encoder, features, initial_pretrained
from metapt.estimate.finetuning import HEADS_STEPS, auroc_step, heads_step, labels
from metapt.estimate.work import OPEN, RUN_BYTES, Run, Step, added, summary
from metapt.sections import Experiment
from metapt.training.checkpoint import Checkpoint
from metapt.training.pretraining import Pretrainer
from metapt.training.seeds import generator

RECORDS = {"simulated": 2400, "ptbxl-1.0.3": 21799, "ptbxl-1.0.1": 21837}
RAW_BYTES = {"simulated": 62e6, "ptbxl-1.0.3": 560e6, "ptbxl-1.0.1": 560e6}
"""The 100 Hz records with their headers and the two tables."""
SECONDS_PER_RECORD = 5e-4
"""Of preparation; generating one takes as long."""

_NO_MATTER = {"pretrain_steps", "warmup_epochs", "finetune_lr", "scale_lr", "network_lr", "meta_optimizer", "meta_settings"}
_SIGNAL_BYTES = 2 * len(LEADS) * SAMPLES
_VIEWS_BYTES = 2e6
_OPENED = 2048  # ECGs that are opened at most; the time for more grows with their number
_FEWEST = 4  # ECGs in a minibatch that is to stand for a larger one

PLAIN, UPDATE = "PT step", "PT step and meta-update"
SUPERVISED = "supervised step with meta-update, and a PT step"
ENCODE = f"{CHUNK} ECGs through the encoder"
FINETUNE = "FT step of the whole network"
AUROC = "validation AUROC"
HEADS = f"{HEADS_STEPS} steps of linear heads"


def runs(section: ecg.EcgConfig, experiment: str) -> list[Run]:
    """See `metapt.estimate.work.Costs.runs`."""
    needed = needs(section, experiment)
    found = [_pretrain_run(section, key) for key in needed.pretrain]
    found += [_finetune_run(section, key) for key in needed.finetune]
    found += [_study_run(section, key) for key in needed.study]
    if experiment == "augmentations":
        found.append(_views_run(section, needed.pretrain))
    return [*found, summary("ecg", experiment, found)]


def data_runs(section: ecg.EcgConfig, raw_bytes: Mapping[str, int]) -> list[Run]:
    """See `metapt.estimate.work.Costs.data_runs`."""
    count, source = RECORDS[section.source], section.source
    raw = Run(
        f"raw/{source}",
        "raw data",
        seconds=count * SECONDS_PER_RECORD if source == "simulated" else 0,
        trains=False,
        output_bytes=raw_bytes.get(source, RAW_BYTES[source]),
    )
    prepared = Run(
        f"ecg/data/{source}",
        "prepared data",
        seconds=count * SECONDS_PER_RECORD,
        trains=False,
        output_bytes=count * _SIGNAL_BYTES,
        after=(raw.name,),
    )
    return [raw, prepared]


def steps(section: ecg.EcgConfig, device: str) -> list[Step]:
    """See `metapt.estimate.work.Costs.steps`."""
    found = {OPEN: _open_step(section, device), ENCODE: _encode_step(section, device)}
    for name, arm in ecg.arms_of(section).items():
        for step in _arm_steps(section, name, arm, device):
            found.setdefault(step.name, step)
    settings = section.finetune
    sizes = sorted({key.size for key in _finetune_keys(section)})
    found[FINETUNE] = _finetune_step(section, device)
    classes, seeds = len(CLASSES), section.finetune_seeds
    batch = min(settings.batch_size, max([finetune_parts(size)[0] for size in sizes], default=settings.batch_size))
    found[HEADS] = heads_step(HEADS, features(section.width), classes, batch, seeds, [settings.linear_lr], device)
    found[AUROC] = auroc_step(AUROC, max([finetune_parts(size)[1] for size in sizes], default=100), classes, seeds, device)
    return list(found.values())


# Jobs


def _records(section: ecg.EcgConfig) -> tuple[int, int]:
    """ECGs to pre-train on, and to test on."""
    training = ecg.TRAINING_RECORDS[section.source]
    return section.pretrain.signals or training, RECORDS[section.source] - training


def _folder(key: PretrainKey) -> str:
    return f"ecg/pretrain/{key.arm}/{key.access}/seed{key.seed}"


def _pretrain_run(section: ecg.EcgConfig, key: PretrainKey) -> Run:
    arm = ecg.arms_of(section)[key.arm]
    count, _ = _records(section)
    held = _SIGNAL_BYTES * (RECORDS[section.source] + (0 if isinstance(arm, ecg.NoPretraining) else count))
    return Run(
        _folder(key),
        "ECG PT",
        added({OPEN: 1}, _pretrain_steps(section, key.arm, arm, meta_size(key.access))),
        held_bytes=held,
        output_bytes=_encoder_bytes(section.width) + RUN_BYTES,
        after=(f"ecg/data/{section.source}",),
    )


def _pretrain_steps(section: ecg.EcgConfig, name: str, arm: ecg.Arm, labelled: int | None) -> dict[str, float]:
    count, _ = _records(section)
    per_epoch = ecg.steps_per_epoch(section.pretrain, count)
    total = section.pretrain.epochs * per_epoch
    if isinstance(arm, ecg.NoPretraining):
        return {}
    step = _step_name(arm.warp)
    priced = {ENCODE: (labelled or 0) / CHUNK}
    match arm:
        case ecg.Simclr():
            return {step: total}
        case ecg.Meta():
            iterations, warmup = ecg.meta_iterations(arm, section.pretrain.epochs, per_epoch)
            updates = iterations - warmup
            return {_plain(section, name, arm): iterations * arm.pretrain_steps - updates, _kind(section, name, UPDATE): updates}
        case ecg.OptSla():
            train, _ = finetune_parts(labelled or 0)
            supervised = arm.epochs * max(1, train // arm.batch_size)
            return {_kind(section, name, SUPERVISED): supervised, step: total - supervised}
        case ecg.RandomSearch():
            tried = arm.candidates * max(1, round((arm.budget - 1) * total / arm.candidates))
            return added({step: total + tried}, {name: arm.candidates * each for name, each in priced.items()})
        case ecg.BranchSearch():
            branches = 2 if arm.select == "validation" else 1
            prices = branches * total / arm.period if branches == 2 else 0
            return added({step: branches * total}, {name: prices * each for name, each in priced.items()})


def _finetune_run(section: ecg.EcgConfig, key: FinetuneKey) -> Run:
    settings, (_, test) = section.finetune, _records(section)
    train, validation = finetune_parts(key.size)
    work: dict[str, float] = {OPEN: 1}
    pretrained, tuned = section.pretrain_seeds, section.pretrain_seeds * section.finetune_seeds
    if "linear_evaluation" in section.evaluations:
        taken = math.ceil(train / settings.batch_size) * settings.linear_epochs * pretrained
        heads = {HEADS: taken / HEADS_STEPS, AUROC: settings.linear_epochs * pretrained}
        work = added(work, heads, {ENCODE: pretrained * (train + validation + test) / CHUNK})
    if "full_transfer" in section.evaluations:
        work = added(
            work,
            {
                FINETUNE: tuned * settings.epochs * train / settings.batch_size,
                ENCODE: tuned * (settings.epochs * validation + test) / CHUNK,
            },
        )
    return Run(
        f"ecg/{key.name}",
        "ECG FT",
        work,
        held_bytes=_SIGNAL_BYTES * (RECORDS[section.source] + 2 * (key.size + test)),
        output_bytes=RUN_BYTES,
        after=tuple(_folder(PretrainKey(key.arm, key.access, seed)) for seed in range(pretrained)),
    )


def _study_run(section: ecg.EcgConfig, key: StudyKey) -> Run:
    study = section.warp_study
    assert study is not None
    strengths = [
        (name, initial)
        for name, values in study.strengths.items()
        if study.warps[name].smoothing == _meta(section, key.arm).warp.smoothing
        and study.warps[name].scale == _meta(section, key.arm).warp.scale
        for initial in values
    ]
    ahead, draws = max(study.horizon), len(strengths) * study.draws
    prices = (1 + len(strengths) * len(set(study.horizon))) * study.finetune_size
    work = {
        OPEN: 1.0 + len(strengths),
        _kind(section, key.arm, UPDATE): draws,
        _step_name(_meta(section, key.arm).warp): len(strengths) * ahead - draws,
        ENCODE: (prices + len(strengths) * study.finetune_size) / CHUNK,
    }
    after = tuple(_folder(PretrainKey(ecg.fixed_arm(name, initial), "none", key.seed)) for name, initial in strengths)
    held = 2 * _SIGNAL_BYTES * RECORDS[section.source]
    return Run(
        f"ecg/warp_study/{key.arm}/seed{key.seed}", "ECG study", work, held_bytes=held, output_bytes=RUN_BYTES, after=after
    )


def _views_run(section: ecg.EcgConfig, keys: list[PretrainKey]) -> Run:
    return Run(
        "ecg/augmentations/views",
        "ECG study",
        {OPEN: 1, ENCODE: len(keys) * min(1000, _records(section)[1]) / CHUNK},
        held_bytes=_SIGNAL_BYTES * RECORDS[section.source],
        output_bytes=_VIEWS_BYTES,
        after=tuple(map(_folder, keys)),
    )


def _finetune_keys(section: ecg.EcgConfig) -> list[FinetuneKey]:
    keys = [key for key, value in section if isinstance(value, Experiment)]
    return [found for key in keys for found in needs(section, key).finetune]


@cache
def _encoder_bytes(width: int) -> float:
    made = initial_pretrained(width, generator("ecg weights", 0))
    return float(sum(value.nbytes for part in made for value in part.values()))


def _kind(section: ecg.EcgConfig, name: str, what: str) -> str:
    """The step of the first arm that takes the same steps: rates and starting points are no matter."""
    arms = ecg.arms_of(section)
    like = next(other for other, arm in arms.items() if _shape(arm) == _shape(arms[name]))
    return f"{what}, {like}"


def _plain(section: ecg.EcgConfig, name: str, arm: ecg.Meta) -> str:
    """The step of a meta arm without a meta-update; a PT step like any where its head rests."""
    return _kind(section, name, PLAIN) if arm.head_steps_between_updates else _step_name(arm.warp)


def _shape(arm: ecg.Arm) -> str:
    """What a step's time depends on."""
    shape = arm.model_dump(exclude=_NO_MATTER)
    return str(shape | ({} if isinstance(arm, ecg.NoPretraining) else {"warp": arm.warp.model_dump(exclude={"initial"})}))


def _step_name(warp: ecg.Warp) -> str:
    network = f"network of {warp.network_width}" if warp.network_width else "one strength"
    return f"{PLAIN}, warp by {warp.smoothing}, {network}"


def _meta(section: ecg.EcgConfig, name: str) -> ecg.Meta:
    arm = section.arms[name]
    assert isinstance(arm, ecg.Meta)
    return arm


# Steps


def _part(batch: int) -> float:
    return min(1.0, _FEWEST / batch)


def _dataset(count: int, share: float, section: ecg.EcgConfig, device: str) -> Dataset:
    """Random ECGs, of which a tenth are to be tested on."""
    size = max(64, round(count * share))
    random = np.random.default_rng(0)
    signals = random.integers(-300, 300, (size, len(LEADS), SAMPLES), np.int16)
    truth = labels(size, len(CLASSES), "cpu").numpy()
    table = pd.DataFrame({"patient_id": np.arange(size), "fold": np.arange(size) % TEST_FOLD + 1})
    return Dataset(EcgRecords(signals, table, truth), 0.0, 173.0, section.samples, device)


def _setting(section: ecg.EcgConfig, share: float, device: str, arm: ecg.Arm) -> Setting:
    """One minibatch an epoch."""
    batch = max(4, round(share * section.pretrain.batch_size))
    labelled = max(40, round(share * _most_labels(section))) if ecg.uses_labels(arm) else None
    dataset = _dataset(2 * batch + 2 * (labelled or 0), 1.0, section, device)
    settings = section.pretrain.model_copy(update={"batch_size": batch, "signals": batch, "epochs": 1})

    def checkpoint(part: str) -> Checkpoint:
        raise AssertionError("steps keep no checkpoints")

    return Setting(dataset, section.width, settings, 0, labelled, section.split, checkpoint)


def _most_labels(section: ecg.EcgConfig) -> int:
    """ECGs of the largest FT set that a PT run sees; smaller ones make a meta-update a little cheaper."""
    keys = [key for key in _finetune_keys(section) if meta_size(key.access)]
    others = [each.finetune_size for each in (section.augmentations, section.warp_study, section.cost) if each is not None]
    return max([meta_size(key.access) or 0 for key in keys] + others, default=500)


def _arm_steps(section: ecg.EcgConfig, name: str, arm: ecg.Arm, device: str) -> list[Step]:
    if isinstance(arm, ecg.NoPretraining):
        return []
    found = [_pretrain_step(section, arm.warp, device)]
    match arm:
        case ecg.Meta():
            found.append(_loop_step(section, name, arm, device, True))
            if arm.head_steps_between_updates:
                found.append(_loop_step(section, name, arm, device, False))
        case ecg.OptSla():
            found.append(_supervised_step(section, name, arm, device))
    return found


def _pretrain_step(section: ecg.EcgConfig, warp: ecg.Warp, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        setting = _setting(section, share, device, ecg.Simclr(method="simclr"))
        policy = policy_of(warp)
        trainer = Pretrainer(setting.problem(policy), setting.batches(), setting.initial(), setting.optimizer)
        meta = setting.initial_meta(policy)
        return lambda: trainer.step(meta)

    return Step(_step_name(warp), prepare, _part(section.pretrain.batch_size))


def _loop_step(section: ecg.EcgConfig, name: str, arm: ecg.Meta, device: str, update: bool) -> Step:
    """A PT step of the meta-PT loop, with the head's steps; or with a meta-update."""

    def prepare(share: float) -> Callable[[], object]:
        part = arm.model_copy(
            update={"batch_size": max(4, round(share * arm.batch_size)), "pretrain_steps": 1, "warmup_epochs": 0}
        )
        setting = _setting(section, share, device, part)
        loop, policy = meta_loop(setting, part)
        if not update:
            loop.settings = replace(loop.settings, iterations=2**30, warmup=2**29)

        def work() -> None:
            loop.iterate()
            warp_figures(policy, {key: value.detach() for key, value in loop.averaged_meta.items()}, section.samples)

        return work

    return Step(_kind(section, name, UPDATE if update else PLAIN), prepare, _part(section.pretrain.batch_size))


def _supervised_step(section: ecg.EcgConfig, name: str, arm: ecg.OptSla, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        batch = max(8, round(share * arm.batch_size))
        one = arm.model_copy(update={"batch_size": batch, "epochs": 1, "steps": 1})
        setting = _setting(section, share, device, one)
        labelled = min(math.ceil(batch / TRAINING_SHARE), len(setting.dataset.records.training))

        def work() -> None:
            with tempfile.TemporaryDirectory() as folder:
                pretrain(
                    one,
                    replace(
                        setting, meta_size=labelled, checkpoint=lambda part: Checkpoint(Path(folder, f"{part}.pt"), "estimate")
                    ),
                )

        return work

    return Step(_kind(section, name, SUPERVISED), prepare, _part(section.pretrain.batch_size))


def _finetune_step(section: ecg.EcgConfig, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        count = max(4, round(share * section.finetune.batch_size))
        train, few = (_labelled(section, number, device) for number in (count, 4))
        start = initial_pretrained(section.width, generator("ecg weights", 0)).to(device)
        settings = section.finetune.model_copy(update={"epochs": 1, "batch_size": count})
        encoder, sets = Encoder(section.width), Sets(train, few, few)
        return lambda: full_transfer(
            encoder, start.encoder, start.buffers, section.width, sets, settings, generator("ecg finetune", "estimate")
        )

    return Step(FINETUNE, prepare, _part(section.finetune.batch_size))


def _encode_step(section: ecg.EcgConfig, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        signals = _labelled(section, max(1, round(share * CHUNK)), device).signals
        start = initial_pretrained(section.width, generator("ecg weights", 0)).to(device)
        encoder, network = Encoder(section.width), {**start.encoder, **start.buffers}

        def work() -> None:
            with torch.no_grad():
                encoder(network, signals, training=False)

        return work

    return Step(ENCODE, prepare, _part(CHUNK))


def _labelled(section: ecg.EcgConfig, count: int, device: str) -> Labelled:
    signals = torch.randn(count, section.samples, len(LEADS), device=device)
    return Labelled(signals, labels(max(2, count), len(CLASSES), device)[:count])


def _open_step(section: ecg.EcgConfig, device: str) -> Step:
    """The statistics of all ECGs, and those to pre-train on as a tensor."""
    count = RECORDS[section.source]

    def prepare(share: float) -> Callable[[], object]:
        dataset = _dataset(count, share, section, device)
        chosen = dataset.records.training[: round(share * _records(section)[0])]

        def work() -> None:
            statistics(dataset.records)
            dataset.raw(chosen)

        return work

    return Step(OPEN, prepare, min(1.0, _OPENED / count))
