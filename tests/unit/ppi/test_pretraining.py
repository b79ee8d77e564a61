"""What each arm's PT makes of its setting and options, on small graphs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from metapt.domains.ppi import config
from metapt.domains.ppi.arms import fixed_weights, meta_loop, pretrain
from metapt.domains.ppi.data.dataset import PpiDataset, held_out_tasks, splits
from metapt.domains.ppi.pretraining_setting import PpiSetting, related, task_groups
from metapt.domains.ppi.problem import WEIGHTS, PpiBatches, task_weights
from metapt.domains.ppi.stages import FOLDS, ONLINE, QUANTILES
from metapt.errors import ConfigError, DataError
from metapt.hypergrad import Adam, FittedHead, Neumann, RidgeHead, Unroll
from metapt.training.meta import MetaPretraining
from metapt.training.meta_settings import MetaSettings
from metapt.training.optimizers import OptimizerSpec
from metapt.training.pretraining import Pretrainer
from metapt.twostage.auroc import mean_auroc
from metapt.twostage.heads import logits
from metapt.twostage.pretraining import PretrainRun

from ..twostage.whole_runs import Stopped, Unsaved
from .small_arms import ARMS_HERE, LEARNED, setting_in
from .small_graphs import COARSE, FINE, TEST_SPECIES

PT, TRAIN, VALIDATION = 100, 68, 12  # graphs
STEPS = 12
ARMS = {name: arm for name, arm in ARMS_HERE.items() if name != "meta-fitted"}  # which takes as long as all others
LEARNERS = [name for name, arm in ARMS.items() if config.learns_weights(arm)]
META: dict[str, Any] = {"pretrain_steps": 2, "warmup_epochs": 0.5}

Make = Callable[..., PpiSetting]
Ran = Callable[[str], PretrainRun]


@pytest.fixture(scope="module")
def ran(dataset: PpiDataset, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return a function that runs an arm with seed 0, once per arm."""
    folder = tmp_path_factory.mktemp("runs")
    return functools.cache(lambda name: pretrain(ARMS_HERE[name], setting_in(folder, dataset, checkpoint=Unsaved)))


@pytest.mark.parametrize("name", LEARNERS)
def test_learned_weights_move_and_their_way_is_told(ran: Ran, name: str) -> None:
    run = ran(name)
    assert run.meta.keys() == {WEIGHTS}
    assert run.meta[WEIGHTS].shape == (COARSE,)
    assert (run.meta[WEIGHTS] != 0).all()
    assert sorted({row["step"] for row in run.series}) == [2, 4, 6]
    last = {row["name"]: row["value"] for row in run.series if row["step"] == 6}
    for row, share in QUANTILES.items():
        assert last[row] == pytest.approx(float(task_weights(run.meta).quantile(share)), rel=1e-6)
    assert {"moved", "swing", "hypergradient"} <= run.numbers.keys()


@pytest.mark.parametrize("name", ARMS)
def test_the_ft_head_that_pt_trains_is_tested_on_the_way(ran: Ran, make: Make, name: str) -> None:
    run = ran(name)
    trains_head = name.startswith("cotrain") or name in ("meta", "meta-identity", "meta-released")
    for figure in ONLINE.values():
        values = [row["value"] for row in run.series if row["name"] == figure]
        assert len(values) == (3 if trains_head else 0)
        assert (figure in run.numbers) is trains_head
        assert not trains_head or values[-1] == pytest.approx(run.numbers[figure])
    if name == "cotrain":
        quiet = pretrain(ARMS_HERE[name], make(online_evaluations=0))
        assert not quiet.series
        assert set(ONLINE.values()) <= quiet.numbers.keys()


def test_online_aurocs_are_of_validation_graphs_and_of_the_hard_half(make: Make) -> None:
    setting = make("held_out_1")
    assert task_weights(setting.initial_meta(4)).tolist() == [1.0] * 4
    start, head = setting.initial(), setting.initial_head()
    network, dataset = {**start.encoder, **start.buffers}, setting.dataset
    parts = splits(dataset.graphs, [TEST_SPECIES])
    test, found = torch.from_numpy(parts.test), setting.online(network, head)
    outputs = logits(head, setting.encoder(network, dataset.batch(test), training=False))
    expected = 100 * mean_auroc(outputs, dataset.fine(test)[:, setting.tasks])
    assert float(found[ONLINE["test"]]) == pytest.approx(float(expected), abs=1e-4)
    of = {"train": parts.train, "easy": parts.easy, ONLINE["validation"]: parts.validation, ONLINE["test"]: parts.test}
    for name, part in of.items():
        bits = dataset.fine_bits.clone()
        bits[torch.from_numpy(part)] ^= 255
        changed = dataclasses.replace(setting, dataset=dataclasses.replace(dataset, fine_bits=bits))
        again = changed.online(network, head)
        assert {key for key, value in again.items() if not torch.equal(value, found[key])} == {name} & set(found)


def test_fixed_weights_are_those_that_another_arm_has_learned(make: Make) -> None:
    def weights(name: str, seed: int = 0) -> torch.Tensor:
        return fixed_weights(make(seed=seed), ARMS_HERE[name])[WEIGHTS]  # type: ignore[arg-type]

    assert torch.equal(weights("graph_supervised"), torch.zeros(COARSE))
    assert torch.equal(weights("meta-frozen"), LEARNED)
    permuted = weights("meta-permuted")
    assert torch.equal(permuted.sort().values, LEARNED.sort().values)
    assert torch.equal(permuted, weights("meta-permuted"))
    assert len({tuple(each.tolist()) for each in (permuted, weights("meta-permuted", 1), LEARNED)}) == 3


def test_pt_sees_train_validation_and_easy_graphs_and_their_centres(make: Make) -> None:
    setting = make()
    parts = splits(setting.dataset.graphs, [TEST_SPECIES])
    assert sorted(setting.graphs) == sorted([*parts.train, *parts.validation, *parts.easy])
    assert len(setting.graphs) == PT
    assert [len(part) for part in setting.finetune] == [TRAIN, VALIDATION]
    assert all(map(np.array_equal, setting.finetune, (parts.train, parts.validation)))
    assert setting.tasks.tolist() == list(range(FINE))
    released, right = (make(offset_centres=offset).batches(PpiBatches).pretrain().graphs for offset in (False, True))
    assert not torch.equal(right.centre, released.centre)


def test_half_of_the_data_is_half_of_each_set(make: Make) -> None:
    settings = [make(), *(make("half_data", seed) for seed in (0, 0, 1))]
    whole, half, again, other = (setting.finetune for setting in settings)
    assert [len(part) for part in half] == [TRAIN // 2, VALIDATION // 2]
    assert all(set(part) < set(everything) for part, everything in zip(half, whole, strict=True))
    assert all(map(np.array_equal, half, again))
    assert not np.array_equal(half[0], other[0])
    assert np.array_equal(settings[1].graphs, settings[0].graphs)
    sets = settings[1].sets(ARMS_HERE["meta"])  # type: ignore[arg-type]
    assert [sorted(sets[name][0]) for name in ("train", "validation")] == [sorted(part) for part in half]


@pytest.mark.parametrize("part", range(FOLDS))
def test_what_is_held_out_is_not_seen(make: Make, part: int) -> None:
    setting, held_out = make(f"held_out_{part}"), set(held_out_tasks(FINE, part))
    assert set(setting.tasks.tolist()) == set(range(FINE)) - held_out
    widths = len(setting.tasks), len(setting.initial_head()["bias"]), setting.batches(PpiBatches).train().labels
    assert (*widths[:2], widths[2].shape[1]) == (FINE - len(held_out),) * 3


def parts_of_updates(setting: PpiSetting, arm: config.PpiMeta, updates: int) -> list[list[list[int]]]:
    """Return the numbers of the graphs in each part of each meta-update."""
    data = setting.dataset
    numbers = torch.arange(len(data.graphs), dtype=torch.float32).repeat_interleave(data.nodes.diff()).unsqueeze(1)
    data = dataclasses.replace(data, edge_sums=torch.cat([numbers, data.edge_sums[:, 1:]], 1))
    loop = meta_loop(dataclasses.replace(setting, dataset=data), arm)

    def seen(batch: Any) -> list[int]:
        return [int(part[0, 0]) for part in batch.graphs.edge_sums.split(batch.graphs.sizes.tolist())]

    draws = [loop.batches.validation, *[loop.batches.train] * loop.settings.finetuning.minibatches]
    return [[seen(draw()) for draw in draws] for _ in range(updates)]


@pytest.mark.parametrize("folds", [None, 2, 7])
@pytest.mark.parametrize("size", [None, 8, 30])
def test_a_cross_fitted_head_sees_disjoint_folds_in_every_meta_update(
    make: Make, folds: int | None, size: int | None
) -> None:
    """Without folds, a head is fitted to training graphs and evaluated on validation graphs."""
    setting = make()
    train, validation = (part.tolist() for part in setting.finetune)
    arm = config.PpiMeta(**META, unroll="ridge", folds=folds, batch_size=size)
    for parts in parts_of_updates(setting, arm, 6):
        flat = [number for part in parts for number in part]
        assert len(set(flat)) == len(flat)
        if folds is None:
            assert [len(part) for part in parts] == [min(size or VALIDATION, VALIDATION), size or TRAIN]
            assert set(parts[0]) <= set(validation)
            assert set(parts[1]) <= set(train)
            continue
        least = (TRAIN + VALIDATION) // folds
        assert len(parts) == folds
        assert set(flat) <= {*train, *validation}
        assert min(map(len, parts)) == (least if size is None else min(size, least))
        assert size is not None or len(flat) == TRAIN + VALIDATION


def test_more_folds_than_ft_graphs_are_refused(make: Make) -> None:
    count = TRAIN + VALIDATION
    assert make().sets(config.PpiMeta(unroll="ridge", folds=count))
    with pytest.raises(ConfigError, match=f"folds is {count + 1}, and there are {count} FT graphs; legal: at most as"):
        make().sets(config.PpiMeta(unroll="ridge", folds=count + 1))


def test_every_option_of_an_arm_reaches_its_loop(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    def stopped(self: Any, *given: Any, **options: Any) -> None:
        begun.append(self.settings if isinstance(self, MetaPretraining) else given[-1])
        raise Stopped

    same: dict[str, Any] = {"curvature": "gauss_newton", "accumulate": 3, "clip_norm": 0.7, "normalise": True}
    same |= {"average_decay": 0.25, "explosion_factor": 50, "max_skipped": 3, "reuse_gradient": True}
    same |= {"head_steps_between_updates": 2}
    learned: dict[str, Any] = {"pretrain_lr": 2e-4, "meta_lr": 0.3, "pretrain_steps": 3, "warmup_epochs": 1.5}
    own: dict[str, Any] = {"inverse": config.NeumannSeries(terms=3), "unroll_steps": 2, "finetune_lr": 0.02}
    meta = config.PpiMeta(**same, **learned, **own, meta_optimizer="SGD", meta_settings={"momentum": 0.5})
    loops = [config.LearnedWeights(method="learned_weights", neumann_terms=4, **learned), meta]
    plain = [ARMS_HERE[name].model_copy(update={"pretrain_lr": 2e-4}) for name in ("graph_supervised", "cotrain")]
    for arms, where in ((loops, (MetaPretraining, "run")), (plain, (Pretrainer, "__init__"))):
        with monkeypatch.context() as patch:
            patch.setattr(*where, stopped)
            for arm in arms:
                with pytest.raises(Stopped):
                    pretrain(arm, make())
    adam = OptimizerSpec("Adam", {"lr": 2e-4, "fused": True})
    length: dict[str, Any] = {"iterations": 4, "pretrain_steps": 3, "warmup": 3, "pretrain_optimizer": adam}
    slow, fast = OptimizerSpec("SGD", {"lr": 0.3, "momentum": 0.5}), OptimizerSpec("Adam", {"lr": 0.3})
    assert begun == [
        MetaSettings(**length, inverse=Neumann(4, 2e-4), finetuning=Unroll(0), meta_optimizer=fast),
        MetaSettings(**length, **same, inverse=Neumann(3, 2e-4), finetuning=Unroll(2, Adam(0.02)), meta_optimizer=slow),
        *[adam] * 2,
    ]
    folds = {"l2": 0.5, "folds": 4, "batch_size": None}
    for changes, solver in (
        ({"unroll": "fitted", "l2": 0.5}, FittedHead(0.5)),
        ({"unroll": "fitted"} | folds, FittedHead(0.5, cross_fit=True, minibatches=3)),
        ({"unroll": "ridge"} | folds, RidgeHead(0.5, cross_fit=True, minibatches=3)),
    ):
        assert meta_loop(make(), config.PpiMeta(**META, **changes)).settings.finetuning == solver


def test_the_gradients_of_co_training_are_the_arms(ran: Ran) -> None:
    ends = [ran(name).pretrained.encoder["node"] for name in ("cotrain", "cotrain_pcgrad")]
    assert not torch.equal(*ends)


def test_warm_up_is_in_epochs(make: Make) -> None:
    def loop(steps: int, epochs: float) -> MetaSettings:
        return meta_loop(make(epochs=5), config.PpiMeta(pretrain_steps=steps, warmup_epochs=epochs)).settings

    # Of 30 steps, six in each epoch.
    found = [loop(4, 0), loop(4, 1), loop(4, 2.5), loop(30, 0)]
    expected = [(7, 2, 0), (7, 2, 2), (7, 2, 4), (1, 0, 0)]
    assert [(each.iterations, each.remainder, each.warmup) for each in found] == expected
    with pytest.raises(ConfigError, match=r"warmup_epochs: .* so that the task weights would never be learned"):
        loop(4, 5)
    with pytest.raises(ConfigError, match=r"pretrain_steps is 31, which is more than the 30 steps .* at most 30"):
        loop(31, 0)


@pytest.mark.parametrize("name", ["graph_supervised", "cotrain", "cotrain_learned_weights", "meta"])
def test_every_method_trains_in_bfloat16(make: Make, ran: Ran, name: str) -> None:
    lower, plain = pretrain(ARMS_HERE[name], make(precision="bfloat16", checkpoint=Unsaved)), ran(name)
    pairs = zip(lower.pretrained.vector(), plain.pretrained.vector(), strict=True)
    assert 0 < max(float((a - b).abs().max()) for a, b in pairs) < 2 * STEPS * 1e-3  # Adam's steps are at most 1e-3
    assert all(value.dtype is torch.float32 for value in lower.pretrained.vector())


def test_hypergradients_alone_compute_layers_anew(make: Make) -> None:
    loop: Any = meta_loop(make(), config.PpiMeta(**META, recompute=True))
    assert loop.problem.encoder._recompute
    assert not loop._pretrainer.problem.encoder._recompute


def blocks(noise: float = 0.05) -> NDArray[np.bool_]:
    """Return labels [500, 12] of three groups of four tasks, which take turns."""
    random = np.random.default_rng(0)
    causes = random.random((500, 3)) < 0.3
    return causes[:, [0, 1, 2] * 4] ^ (random.random((500, 12)) < noise)


def test_tasks_of_one_cause_are_one_group_numbered_by_its_first_task() -> None:
    assert task_groups(blocks(), 3).tolist() == [0, 1, 2] * 4
    labels = blocks(0.3)
    for count in (2, 5, 12):
        assert set(task_groups(labels, count).tolist()) == set(range(count))
    assert task_groups(labels, 12).tolist() == list(range(12))
    with pytest.raises(DataError, match="12 PT tasks don't make 13 groups"):
        task_groups(labels, 13)


def test_tasks_that_correlate_with_none_are_apart() -> None:
    permuted, constant, random = blocks(), blocks(), np.random.default_rng(1)
    for task in range(6, 12):
        permuted[:, task] = random.permutation(permuted[:, task])
    found = task_groups(permuted, 4)
    assert not set(found[:6]) & set(found[6:])
    constant[:, 0], constant[:, 1] = False, True
    assert len(set(task_groups(constant, 5).tolist())) == 5


def test_an_arm_gives_each_task_the_weight_of_its_group(make: Make) -> None:
    weights = [0.02, 1.0, 1.98]
    found = task_weights(fixed_weights(make(), config.Supervised(method="supervised", group_weights=weights)))
    torch.testing.assert_close(found, torch.tensor(weights)[torch.from_numpy(make().groups(3))])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool])
def test_related_terms(dtype: type) -> None:
    """Use 300 graphs, of which 100 carry the fine term."""
    fine = np.zeros((300, 2), dtype)
    fine[:100, 0] = 1
    coarse = np.zeros((300, 6), dtype)
    coarse[:100, 0] = 1  # the same graphs
    coarse[:149, 1] = 1  # a container, just below half
    coarse[:150, 2] = 1  # half of all graphs
    coarse[1:120, 3] = 1  # 99 %
    coarse[2:120, 4] = 1  # 98 %
    assert related(coarse, fine)[:, 0].tolist() == [True, True, False, True, False, False]
    assert not related(coarse, fine)[:, 1].any()  # no graph carries it
