"""An FT job: one arm and setting, all its PT seeds and FT seeds, both evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metapt.domains.ppi.config import FinetuneSettings, Network
from metapt.domains.ppi.data.dataset import open_dataset, splits
from metapt.domains.ppi.finetune import Sets, finetune_tasks, full_transfer, linear_evaluation, sets_of
from metapt.domains.ppi.gin import Encoder, initial_pretrained
from metapt.domains.ppi.runs import EXPERIMENT, load_pretrained
from metapt.evaluation import metrics
from metapt.hypergrad import Pretrained
from metapt.stages import Machine
from metapt.training.checkpoint import Checkpoint, fingerprint
from metapt.training.seeds import generator
from metapt.twostage.finetuning import Part, Score, Scores, highest, parts
from metapt.twostage.pairs import pair

MEAN_AUROC = "mean test AUROC over FT tasks (%)"
VALIDATION_AUROC = "validation AUROC (%)"
BEST_EPOCH = "best epoch"
LEARNING_RATE = "learning rate"
TASK_AUROC = "test AUROC of a task (%)"


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fine-tunes and tests; see `metapt.registry.Domain.finetune`.

    Args:
        config: `arm` (its name), `method` (of the arm), `setting`, `pretrain_seeds`, `finetune_seeds` (numbers of them),
            `evaluations`, `network` (see `Network`), `finetune` (see `FinetuneSettings`), `test_species`, `checkpoint` (path).
        inputs: `graphs`, and, but for the method `no_pt`, `seed{n}`: pretrained.pt of each PT seed.
        outputs: `metrics`, `series`.
        machine: device.

    Raises:
        DataError: as `open_dataset`, `splits`, `finetune_tasks`, `sets_of` and `load_pretrained`.
    """
    settings, network = FinetuneSettings.model_validate(config["finetune"]), Network.model_validate(config["network"])
    dataset = open_dataset(inputs["graphs"], machine.device)
    tasks = finetune_tasks(config["setting"], dataset.fine_tasks)
    sets = sets_of(dataset, splits(dataset.graphs, config["test_species"]), tasks)
    encoder = Encoder(network.layers, network.width)
    scores = Scores(Checkpoint(Path(config["checkpoint"]), fingerprint(config, inputs, __name__, machine.device)))
    for seed in range(config["pretrain_seeds"]):
        todo = [part for part in parts(config, [seed]) if part not in scores]
        for start, served in _starts(config["method"], inputs, network, seed, todo, machine.device):
            _linear(encoder, start, sets, settings, served, scores)
            _transfer(encoder, start, sets, settings, config["arm"], served, scores)
    metrics.write(_rows(config, scores), outputs["metrics"])
    metrics.write_series(_series(config, scores, tasks.tolist()), outputs["series"])
    scores.remove()


def _starts(
    method: str, inputs: dict[str, Path], network: Network, seed: int, todo: list[Part], device: str
) -> Iterator[tuple[Pretrained, list[Part]]]:
    """Yield encoders with the runs of a PT seed that start from them: PT's with all of them; without PT each FT seed draws one.

    The released code draws it with the run's seed, too, so that the spread of the results without PT is over encoders.
    """
    if method != "no_pt":
        if todo:
            yield load_pretrained(inputs[f"seed{seed}"], network, device).pretrained, todo
        return
    for number in sorted({part[2] for part in todo}):
        made = initial_pretrained(network.layers, network.width, 1, generator("ppi weights", seed, number))
        yield made.to(device), [part for part in todo if part[2] == number]


def _linear(
    encoder: Encoder, start: Pretrained, sets: Sets, settings: FinetuneSettings, todo: list[Part], scores: Scores
) -> None:
    """All FT seeds of an encoder together."""
    linear = [part for part in todo if part[0] == "linear_evaluation"]
    if linear:
        generators = [generator("ppi finetune", *part) for part in linear]
        found = linear_evaluation(encoder, start.encoder, start.buffers, sets, settings, generators)
        scores.add(dict(zip(linear, found, strict=True)))


def _transfer(
    encoder: Encoder, start: Pretrained, sets: Sets, settings: FinetuneSettings, arm: str, todo: list[Part], scores: Scores
) -> None:
    """One FT seed after the other. The first tries all learning rates; the best one on validation serves the others too."""

    def transfer(part: Part, lr: float) -> Score:
        label = f"FT of {arm}, seeds {part[1]} and {part[2]}, learning rate {lr:g}"
        stream = generator("ppi finetune", *part)
        return full_transfer(encoder, start.encoder, start.buffers, sets, settings, lr, stream, label)

    for part in todo:
        if part[0] != "full_transfer":
            continue
        first = (*part[:2], 0)
        if part == first:
            trials = {lr: (f"full_transfer with learning rate {lr!r}", *part[1:]) for lr in settings.lrs}
            for lr, trial in trials.items():
                if trial not in scores:
                    scores.add({trial: transfer(part, lr)})
            tried = [scores[trial] for trial in trials.values()]
            scores.add({part: tried[highest([each.validation_auroc for each in tried])]})
        else:
            scores.add({part: transfer(part, scores[first].learning_rate)})


def _rows(config: dict[str, Any], scores: Scores) -> list[dict[str, Any]]:
    return [
        metrics.row(
            EXPERIMENT,
            config["arm"],
            metric,
            value,
            replicate=pair(*part[1:]),
            setting=config["setting"],
            evaluation=part[0],
        )
        for part in parts(config)
        for metric, value in _numbers(scores[part]).items()
    ]


def _numbers(score: Score) -> dict[str, float]:
    return {
        MEAN_AUROC: score.test_auroc,
        VALIDATION_AUROC: score.validation_auroc,
        BEST_EPOCH: score.best_epoch,
        LEARNING_RATE: score.learning_rate,
    }


def _series(config: dict[str, Any], scores: Scores, tasks: list[int]) -> list[dict[str, Any]]:
    """The test AUROC of each FT task, by its number, and the validation AUROC after each epoch."""
    return [
        {"replicate": pair(*part[1:]), "step": step, "name": f"{part[0]}, {name}", "value": value}
        for part in parts(config)
        for name, steps, values in (
            (TASK_AUROC, tasks, scores[part].class_aurocs),
            (VALIDATION_AUROC, range(1, len(scores[part].validation_curve) + 1), scores[part].validation_curve),
        )
        for step, value in zip(steps, values, strict=True)
    ]
