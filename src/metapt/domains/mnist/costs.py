"""What the jobs of this domain cost: the steps that they are made of, and how to take one; see `metapt.estimate.work`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from metapt.domains.mnist import arms, config, mlp, weighting
from metapt.domains.mnist.arms import Run as StudyRun
from metapt.domains.mnist.config import MnistConfig
from metapt.domains.mnist.data.prepare import MnistData
from metapt.domains.mnist.data.sources import CLASSES, SIDE
from metapt.domains.mnist.problem import ExampleWeightsProblem, Images, RotationProblem, WeightingProblem
from metapt.domains.mnist.studies import rotation as rotation_study
from metapt.domains.mnist.studies import weighting as weighting_study
from metapt.domains.mnist.studies.bptt import Stages
from metapt.estimate.work import OPEN, RUN_BYTES, Run, Step, added, summary
from metapt.hypergrad import (
    SGD,
    Adam,
    MetaProblem,
    Neumann,
    Params,
    Pretrained,
    Stacked,
    Unroll,
    exact_hypergradient,
    hypergradient,
)
from metapt.hypergrad.stacked import stack, stack_pretrained
from metapt.sections import Experiment
from metapt.training.batches import Batches
from metapt.training.meta import MetaPretraining

"""Training and test images."""
RAW_BYTES = {"digits": 0.5e6, "mnist": 11.6e6}

_IMAGE_BYTES = SIDE * SIDE
_THREADS = 4
_RECORDS = 100  # of a weighting run
_STEPS = 5  # that are timed together
_PASSES = 20
_FEWEST = 10  # steps that are enough to tell what backpropagation through more of them takes


def runs(section: MnistConfig, experiment: str) -> list[Run]:
    """See `metapt.estimate.work.Costs.runs`."""
    study = getattr(section, experiment)
    found = []
    for name in study.arms:
        threads = min(_THREADS, study.replicates) if experiment == "example_weighting" else 1
        found.append(
            Run(
                f"mnist/{experiment}/{name}",
                f"MNIST, {experiment.replace('_', ' ')}",
                added({OPEN: 1}, _arm_steps(study, experiment, name, config.EXAMPLES[section.source][0])),
                threads=threads,
                alone=experiment == "bptt",
                held_bytes=5 * _IMAGE_BYTES * sum(config.EXAMPLES[section.source]),
                output_bytes=5 * RUN_BYTES,
                after=(f"mnist/data/{section.source}", *_budget(study, experiment, name)),
            )
        )
    return [*found, summary("mnist", experiment, found)]


def data_runs(section: MnistConfig, raw_bytes: Mapping[str, int]) -> list[Run]:
    """See `metapt.estimate.work.Costs.data_runs`."""
    source, count = section.source, sum(config.EXAMPLES[section.source])
    raw = Run(f"raw/{source}", "raw data", seconds=2, trains=False, output_bytes=raw_bytes.get(source, RAW_BYTES[source]))
    prepared = Run(
        f"mnist/data/{source}",
        "prepared data",
        seconds=2,
        trains=False,
        output_bytes=count * (_IMAGE_BYTES + 8),
        after=(raw.name,),
    )
    return [raw, prepared]


def steps(section: MnistConfig, device: str) -> list[Step]:
    """See `metapt.estimate.work.Costs.steps`."""
    found = [_open_step(section, device)]
    for experiment, study in section:
        if isinstance(study, config.RotationMean | config.RotationMeanStd):
            found += [_rotation_step(section, experiment, study, name, device) for name in study.arms]
        elif isinstance(study, config.ExampleWeighting):
            for name in study.arms:
                found += [_weighting_step(section, study, name, device), _weigh_step(section, study, device)]
        elif isinstance(study, config.BpttStudy):
            for name, arm in study.arms.items():
                found += _bptt_steps(section, study, name, arm, device)
        elif isinstance(study, config.Fidelity):
            for name, each in study.arms.items():
                found += [_exact_step(study, name, each, device), _ours_step(study, name, each, device)]
    return list({step.name: step for step in found}.values())


# Jobs


def _arm_steps(study: Experiment, experiment: str, name: str, images: int) -> dict[str, float]:
    words = f"{experiment}, {name}"
    match study:
        case config.RotationMean() | config.RotationMeanStd():
            arm = study.arms[name]
            count = config.iterations(arm, study.epochs, study.pretrain_examples, study.batch_size)
            return {words: count * arm.pretrain_steps / _STEPS}
        case config.ExampleWeighting():
            arm = study.arms[name]
            examples = images if study.pretrain_examples == "all" else study.pretrain_examples
            count = config.iterations(arm, study.epochs, examples, study.batch_size)
            return {
                words: count * arm.pretrain_steps * study.replicates / _STEPS,
                WEIGH: min(count, _RECORDS + 1) * study.replicates,
            }
        case config.BpttStudy():
            return _bptt_work(study, name)
        case config.Fidelity():
            cases = study.replicates * len(study.unroll_steps)
            pretrain = cases * sum(study.pretrain_steps)
            return {
                f"{words}, exact": pretrain / max(study.pretrain_steps),
                f"{words}, ours": cases * len(study.pretrain_steps),
            }
    raise AssertionError(experiment)


WEIGH = "weights of the examples"


def _bptt_work(study: config.BpttStudy, name: str) -> dict[str, float]:
    """Each evaluation is a PT and an FT run; backpropagation's outer step goes through both."""
    arm = study.arms[name]
    tune = {f"bptt, FT, {arm.heads} heads": study.finetune_steps / _PASSES}
    plain = {f"bptt, PT, {arm.heads} heads": study.pretrain_steps / _PASSES}
    one = {f"bptt, {name}": study.pretrain_steps / _STEPS} if isinstance(arm, config.MetaArm) else plain
    every = {step: study.evaluations * count for step, count in added(one, tune).items()}
    if not isinstance(arm, config.BpttArm):
        return every
    outer = f"bptt, outer step, {arm.heads} heads"
    if arm.budget_of is None:
        return added(every, {outer: arm.outer_steps})
    other = study.arms[arm.budget_of]
    spent = (
        {}
        if isinstance(other, config.BpttArm)
        else {step: count / study.evaluations for step, count in _bptt_work(study, arm.budget_of).items()}
    )
    return added(every, spent, {outer: 0.5})  # the outer step in progress is finished


def _budget(study: Experiment, experiment: str, name: str) -> tuple[str, ...]:
    other = getattr(study.arms[name], "budget_of", None) if isinstance(study, config.BpttStudy) else None
    return () if other is None else (f"mnist/{experiment}/{other}",)


# Steps


def _data(section: MnistConfig, device: str, most: int = 8000) -> MnistData:
    """Random images, no more than any study takes."""
    train, test = (min(most, count) for count in config.EXAMPLES[section.source])
    made = [torch.rand(count, SIDE, SIDE, device=device) for count in (train, test)]
    truth = [(torch.arange(count) % CLASSES).to(device) for count in (train, test)]
    return MnistData(made[0], truth[0], made[1], truth[1])


def _run(experiment: str, name: str, device: str) -> StudyRun:
    return StudyRun(f"mnist_{experiment}", name, device, 1, Path("unused"), "")


def _several(loop: MetaPretraining) -> Callable[[], object]:
    def work() -> None:
        for _ in range(_STEPS):
            loop.iterate()

    return work


def _loop(
    problem: MetaProblem, batches: Batches, pretrained: Pretrained, meta: Params, head: Params, arm: config.MetaArm
) -> MetaPretraining:
    """Past its warm-up, a meta-update after each PT step or, where the arm takes more of them, after as many."""
    every = arm.model_copy(update={"warmup": 0})
    return MetaPretraining(problem, batches, pretrained, meta, head, arms.settings(every, 2**20))


def _open_step(section: MnistConfig, device: str) -> Step:
    return Step(OPEN, lambda share: lambda: _data(section, device, 60_000))


def _rotation_step(
    section: MnistConfig, experiment: str, study: config.RotationMean | config.RotationMeanStd, name: str, device: str
) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        arm, run = study.arms[name], _run(experiment, name, device)
        starts = 1 if isinstance(study, config.RotationMean) else len(study.starts)
        seeds = list(range(study.replicates * starts))
        batches = rotation_study.RotationBatches(_data(section, device), study, (45.0, 1.0), run, seeds)
        made = [mlp.initial(arm.heads, CLASSES, CLASSES, run.generator("weights", seed), device) for seed in seeds]
        meta = {"mean": torch.full((len(seeds),), 30.0, device=device)}
        if starts > 1 or isinstance(study, config.RotationMeanStd):
            meta["deviation"] = torch.ones(len(seeds), device=device)
        pretrained, head = stack_pretrained([each for each, _ in made]), stack([each for _, each in made])
        return _several(_loop(Stacked(RotationProblem()), batches, pretrained, meta, head, arm))

    return Step(f"{experiment}, {name}", prepare)


def _weighting(
    section: MnistConfig, study: config.ExampleWeighting, name: str, device: str
) -> tuple[MetaPretraining, weighting_study.WeightingBatches]:
    arm, run = study.arms[name], _run("example_weighting", name, device)
    part = study if study.pretrain_examples != "all" else study.model_copy(update={"pretrain_examples": 3000})
    batches = weighting_study.WeightingBatches(_data(section, device), part, run, 0)
    pretrained, head = mlp.initial(arm.heads, study.classes, weighting_study.CLEAN_CLASSES, run.generator("weights", 0), device)
    meta = {key: value.to(device) for key, value in weighting.network(run.generator("weighting network", 0)).items()}
    return _loop(WeightingProblem(), batches, pretrained, meta, head, arm), batches


def _weighting_step(section: MnistConfig, study: config.ExampleWeighting, name: str, device: str) -> Step:
    return Step(f"example_weighting, {name}", lambda share: _several(_weighting(section, study, name, device)[0]))


def _weigh_step(section: MnistConfig, study: config.ExampleWeighting, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        loop, batches = _weighting(section, study, next(iter(study.arms)), device)
        return lambda: weighting_study.weigh(loop, batches)

    return Step(WEIGH, prepare)


def _bptt_steps(
    section: MnistConfig, study: config.BpttStudy, name: str, arm: config.MetaArm | config.BpttArm | config.FixedArm, device: str
) -> list[Step]:
    few = study.model_copy(update={"pretrain_steps": _PASSES, "finetune_steps": _PASSES})

    def stages() -> Stages:
        return Stages(few, _run("bptt", name, device), _data(section, device), 0)

    def pretrain(share: float) -> Callable[[], object]:
        made = stages()
        return lambda: made.pretrain(45.0)

    def finetune(share: float) -> Callable[[], object]:
        made = stages()
        return lambda: made.finetune(made.pretrained.encoder)

    def learn(share: float) -> Callable[[], object]:
        assert isinstance(arm, config.MetaArm)
        made = stages()
        meta = {"mean": torch.tensor(45.0, device=device)}
        return _several(_loop(made.problem, made.batches, made.pretrained, meta, made.head, arm))

    def outer(share: float) -> Callable[[], object]:
        made = stages()
        lengths = [max(1, round(share * count)) for count in (study.pretrain_steps, study.finetune_steps)]
        return lambda: exact_hypergradient(
            made.problem,
            made.pretrained,
            {"mean": torch.tensor(45.0, device=device, requires_grad=True)},
            made.head,
            pretrain_batches=[made.batches.pretrain() for _ in range(lengths[0])],
            train_batches=[made.batches.train() for _ in range(lengths[1])],
            validation_batches=[made.batches.whole_validation()],
            pretrain_optimizer=Adam(study.pretrain_lr),
            finetune_optimizer=SGD(study.finetune_lr),
        )

    found = [Step(f"bptt, FT, {arm.heads} heads", finetune)]
    if isinstance(arm, config.MetaArm):
        return [*found, Step(f"bptt, {name}", learn)]
    found.append(Step(f"bptt, PT, {arm.heads} heads", pretrain))
    if isinstance(arm, config.FixedArm):
        return found
    return [*found, Step(f"bptt, outer step, {arm.heads} heads", outer, min(1.0, _FEWEST / study.pretrain_steps))]


def _fidelity(study: config.Fidelity, device: str) -> tuple[Pretrained, Params, Params, Images, list[Images], Images]:
    """Initial weights, meta-parameters, PT images, FT training minibatches of the middle K, FT validation images."""
    pretrained, head = mlp.initial("separate", CLASSES, CLASSES, torch.Generator(), device)
    meta = {"weights": torch.ones(study.examples, device=device)}

    def images(count: int) -> Images:
        return Images(torch.rand(count, SIDE, SIDE, device=device), (torch.arange(count) % CLASSES).to(device))

    unrolled = round(sum(study.unroll_steps) / len(study.unroll_steps))
    half = study.finetune_examples // 2
    return pretrained, head, meta, images(study.examples), [images(min(64, half)) for _ in range(unrolled)], images(half)


def _exact_step(study: config.Fidelity, name: str, arm: config.FidelityArm, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        pretrained, head, meta, pretrain, train, validation = _fidelity(study, device)
        return lambda: exact_hypergradient(
            ExampleWeightsProblem(),
            pretrained,
            meta,
            head,
            pretrain_batches=[pretrain] * max(1, round(share * max(study.pretrain_steps))),
            train_batches=train,
            validation_batches=[validation],
            pretrain_optimizer=SGD(study.pretrain_lr),
            finetune_optimizer=SGD(study.finetune_lr),
            network=arm.unroll == "network",
        )

    return Step(f"fidelity, {name}, exact", prepare, min(1.0, _FEWEST / max(study.pretrain_steps)))


def _ours_step(study: config.Fidelity, name: str, arm: config.FidelityArm, device: str) -> Step:
    def prepare(share: float) -> Callable[[], object]:
        pretrained, head, meta, pretrain, train, validation = _fidelity(study, device)

        def work() -> None:
            for terms in study.neumann_terms:
                hypergradient(
                    ExampleWeightsProblem(),
                    pretrained,
                    meta,
                    head,
                    pretrain_batch=pretrain,
                    train_batches=train,
                    validation_batch=validation,
                    inverse=Neumann(terms, study.pretrain_lr),
                    finetuning=Unroll(len(train), SGD(study.finetune_lr), network=arm.unroll == "network"),
                )

        return work

    return Step(f"fidelity, {name}, ours", prepare)
