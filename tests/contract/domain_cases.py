"""Each domain in its smallest size: a section of the config, its arms and prepared data, and how its jobs are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import metapt.domains
from metapt.domains.mnist.data import FILES
from metapt.domains.mnist.data import prepare as mnist_prepare
from metapt.domains.mnist.data import simulate as mnist_simulate
from metapt.domains.ppi.config import ARMS as PPI_ARMS
from metapt.domains.ppi.data import graphs
from metapt.engine.domain import Domain, domain
from metapt.engine.execute import work_of
from metapt.engine.jobs import Job, Jobs, Place
from metapt.files import write_csv
from metapt.machine import Machine
from metapt.sections import JobSettings, SimulateSettings
from metapt.training.checkpoint import Checkpoint
from metapt.training.interruption import Every

from ..unit.ecg import small_ecgs
from ..unit.ppi import small_arms, small_graphs
from ..unit.twostage.synthetic_runs import SOURCES_READ

Files = dict[str, Path]

metapt.domains.__path__.append(str(Path(__file__).parent / "toy_domain"))  # as if the toy lay beside the others


@dataclass(frozen=True)
class Case:
    """A domain as the contract suite sees it."""

    name: str  # of the domain
    section: dict[str, Any]  # of the config, with tiny data, networks and runs
    arms: dict[str, Any]  # small arms, by name
    prepare: Callable[[Path], Files]  # writes prepared data into a folder; returns their paths by output
    place: tuple[str, ...] = ()  # what the methods that make jobs take between arm and seed
    job_changes: dict[str, Any] = field(default_factory=dict)  # settings that the config can't make as small
    # of domains with PT and FT:
    batches: str = ""  # the class whose `pretrain` draws PT minibatches
    steps: int = 0  # PT steps of a run
    plain: str = ""  # an arm of plain PT
    still: Mapping[str, Any] = field(default_factory=dict)  # keys with which they are learned so slowly that none moves
    controls: Mapping[str, str] = field(default_factory=dict)  # arm that learns -> what it is when it learns nothing
    own_draws: tuple[str, ...] = ()  # arms whose weights and minibatches are their own
    goes_on: tuple[str, ...] = ()  # arms whose later trainers begin where the first one ends
    twice: tuple[str, ...] = ()  # arms whose PT steps encode two minibatches
    study: str = ""  # experiment whose arms are jobs, in domains without PT and FT jobs

    @property
    def domain(self) -> Domain:
        """Return the domain's record."""
        return domain(self.name)

    def jobs(self, folder: Path, *, gpu: bool = False, **section: Any) -> Jobs[Any]:
        """Return the jobs of the section, with other keys, with results in a folder."""
        keys = self.section | ({} if self.study else {"arms": self.arms}) | section
        config: Any = self.domain.section().model_validate(keys)
        place = Place(str(folder), str(folder / "raw"), SOURCES_READ, [], gpu)
        return self.domain.jobs(self.name, config, place)

    def pretrain(self, jobs: Any, arm: str, seed: int = 0) -> Job:
        """Return the job that pre-trains an arm."""
        return self.small(jobs.study(self.study, arm) if self.study else jobs.pretrain(arm, *self.place, seed))

    def finetune(self, jobs: Any, arm: str, seed: int = 0) -> Job:
        """Return the job that fine-tunes an arm."""
        return self.small(jobs.finetune(arm, *self.place, seed))

    def small(self, job: Job) -> Job:
        """Return a job with settings that the config can't make as small."""
        return dataclasses.replace(job, config=job.config | self.job_changes)

    def work(self, job: Job, prepared: Files, **inputs: Path) -> Files:
        """Do a job on prepared data, with other `inputs` in place of its own; return its outputs."""
        own = {name: Path(path) for name, path in job.inputs.items()}
        outputs = {name: Path(path) for name, path in job.outputs.items()}
        outputs["metrics"].parent.mkdir(parents=True, exist_ok=True)
        given = {name: prepared.get(name, path) for name, path in own.items()} | inputs
        work_of(job)(given, outputs, Machine())
        return outputs

    def minibatches(self) -> Any:
        """Return the class of PT minibatches."""
        module, _, name = self.batches.rpartition(".")
        return getattr(import_module(module), name)


def ecgs(folder: Path) -> Files:
    """Write 70 short ECGs."""
    made, files = small_ecgs.records(70, small_ecgs.SAMPLES), {"signals": folder / "s.npy", "records": folder / "r.csv"}
    np.save(files["signals"], made.signals)
    write_csv(made.table, files["records"])
    return files


def protein_graphs(folder: Path) -> Files:
    """Write 120 small graphs and their tasks."""
    files = {"graphs": folder / "graphs.npz", "tasks": folder / "tasks.csv"}
    graphs.save(small_graphs.small_graphs(), files["graphs"])
    kinds = ["coarse"] * small_graphs.COARSE + ["fine"] * small_graphs.FINE
    write_csv({"kind": kinds, "description": ["a process"] * len(kinds)}, files["tasks"])
    return files


def digits(folder: Path) -> Files:
    """Write prepared digits."""
    raw, files = {name: folder / name for name in FILES.values()}, {"data": folder / "images.pt"}
    mnist_simulate.run(SimulateSettings(source="digits"), {}, raw, Machine())
    mnist_prepare.run(JobSettings(), raw, files, Machine())
    return files


def noise(folder: Path) -> Files:
    """Write random examples of the toy domain."""
    random, found = torch.Generator().manual_seed(0), {}
    for name, size in (("", 1000), ("train_", 40), ("validation_", 40), ("test_", 40)):
        x = torch.randn(size, 8, generator=random)
        found |= {f"{name}x": x, f"{name}y": x[:, :4].sum(1).gt(0).float() if name else x[:, :4] + x[:, 4:]}
    torch.save(found, folder / "examples.pt")
    return {"examples": folder / "examples.pt"}


def toy_arms() -> dict[str, Any]:
    """Return the toy domain's arms, with meta-updates that fit into ten PT steps."""
    own: Any = import_module("metapt.domains.noise.config")
    return own.ARMS | {"meta": own.ARMS["meta"].model_copy(update={"pretrain_steps": 2, "warmup_epochs": 0.0})}


ECG = small_ecgs.ARMS | {
    name: small_ecgs.ARMS[name].model_copy(update=fewer)
    for name, fewer in (("optsla", {"epochs": 1}), ("random_search", {"candidates": 2}))
}
FT = {"epochs": 2, "linear_epochs": 3, "batch_size": 16}


CASES = {
    case.name: case
    for case in [
        Case(
            "noise",
            {"epochs": 2, "pretrain_seeds": 2},
            toy_arms(),
            noise,
            batches="metapt.domains.noise.problem.Minibatches",
            steps=10,
            plain="fixed",
            still={"meta_lr": 1e-30},
            controls={"meta": "fixed"},
        ),
        Case(
            "mnist",
            {
                "source": "digits",
                "rotation_mean": {"pretrain_examples": 60, "finetune_examples": 60, "batch_size": 20, "epochs": 1},
            },
            {"meta-shared": {}},
            digits,
            study="rotation_mean",
        ),
        Case(
            "ecg",
            {
                "source": "simulated",
                "width": 1,
                "pretrain_seeds": 2,
                "finetune_seeds": 2,
                "pretrain": {"signals": 24, "epochs": 2, "batch_size": 8, "lr": 1e-3},
                "finetune": FT,
            },
            ECG,
            ecgs,
            place=("n25/n25",),
            job_changes={"samples": small_ecgs.SAMPLES},
            batches="metapt.domains.ecg.batches.SimclrBatches",
            steps=6,
            plain="simclr",
            still={"meta_lr": 1e-30, "network_lr": 1e-30},
            controls={"meta": "simclr"},
            own_draws=("best_of",),
            goes_on=("bissl", "bissl-start"),
            twice=("simclr-joint",),
        ),
        Case(
            "ppi",
            {
                "network": {"layers": 2, "width": 4},
                "test_species": [small_graphs.TEST_SPECIES],
                "pretrain_seeds": 2,
                "finetune_seeds": 2,
                "pretrain": {"epochs": 2, "batch_size": 32, "online_evaluations": 3},
                "finetune": FT | {"lrs": [1e-4, 1e-2]},
            },
            small_arms.ARMS_HERE | {"graph_supervised-slow": PPI_ARMS["graph_supervised-slow"]},
            protein_graphs,
            place=("full_access",),
            batches="metapt.domains.ppi.problem.PpiBatches",
            steps=6,
            plain="graph_supervised",
            still={"meta_lr": 1e-30},
            controls={"meta": "graph_supervised-slow", "meta-stable": "graph_supervised"},
            twice=("cotrain", "cotrain_pcgrad", "cotrain_learned_weights"),
        ),
    ]
}
STAGED = [case for case in CASES.values() if not case.study]


def named(value: object) -> str | None:
    """Return the id of a case; any other parameter names itself."""
    return value.name if isinstance(value, Case) else None


class Killed(Exception):
    """The end of a process."""


def killed_at_every_save(work: Callable[[], object]) -> None:
    """Do work that is killed at each of its saves, and begun anew until it ends; it saves whenever it can.

    Two of three times it is killed after it has saved, so that each state that it keeps is resumed from.
    """
    save, number, kills = Checkpoint.save, count(), 0

    def killed(self: Checkpoint, state: dict[str, Any], *processes: Any) -> None:
        if next(number) % 3 != 1:
            self._read_back = True  # the next attempt reads it
            save(self, state, *processes)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", killed)
        patch.setattr(Every, "__call__", lambda self: True)
        while True:
            try:
                work()
            except Killed:
                kills += 1
            else:
                assert kills >= 1
                return


def untimed(outputs: Files) -> dict[str, Any]:
    """Return what outputs hold, as bytes, or as lines without those of times and memory."""
    found: dict[str, Any] = {}
    for name, path in outputs.items():
        if path.suffix == ".pt":
            found[name] = path.read_bytes()
        elif path.suffix == ".csv":
            lines = path.read_bytes().splitlines()
            found[name] = [line for line in lines if b"time" not in line and b"memory" not in line]
    return found
