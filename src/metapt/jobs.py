"""The records that the plan of a config consists of. They need no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metapt.digest import code_digest
from metapt.sections import DomainSection, plain

Json = dict[str, Any]
Files = dict[str, str]
"""Name -> path."""

TRAINING = ("pretrain", "finetune", "study")  # the stages that train with torch

S = TypeVar("S", bound=DomainSection)


@dataclass(frozen=True)
class Job:
    """One run of a stage."""

    stage: str  # `download`, `simulate`, `prepare`, `pretrain`, `finetune`, `study`, `summarise` or `collect`
    name: str  # unique, in the form of a path: `ecg/pretrain/meta/n500/seed0`
    # the module inside the package whose function `run(config, inputs, outputs, machine)` does the work, such as
    # `domains.ecg.pretrain_run`; for the stage `summarise`, the module that holds the record `EXPERIMENT`
    entry: str
    config: Json = field(default_factory=dict)  # sorted dictionaries, lists and scalars
    inputs: Files = field(default_factory=dict)  # paths by name
    outputs: Files = field(default_factory=dict)  # paths by name, without the record
    record: str = ""  # path of its `run.json`, see `metapt.records`
    log: str = ""  # path of its log
    threads: int = 1  # CPU threads
    alone: bool = False  # whether no other job may run at the same time, because its time is a result
    large_products: bool = False  # whether large float32 matrix products take its time (see `training.products`)
    mem_mb: int = 2000  # memory in megabytes
    minutes: int = 10  # time limit

    @property
    def trains(self) -> bool:
        """Whether the job asks for a GPU where the config says `require_gpu`."""
        return self.stage in TRAINING

    @property
    def code(self) -> str | None:
        """The digest of the job's code; None for a download, whose files are known by their published sums."""
        return None if self.stage == "download" else code_digest(self.entry)


@dataclass(frozen=True)
class Place:
    """Where the jobs of a config read and write."""

    results: str  # folder of everything that the workflow makes
    raw: str  # folder of raw data
    sources: Mapping[str, Any]  # the content of sources.yaml
    mirrors: list[str]  # see `Data.mirrors` of the config
    gpu: bool = False  # whether training asks for a GPU


class Jobs(Generic[S]):
    """The jobs of a domain with its section `config`. Each method returns a job; all are kept in `made`."""

    def __init__(self, domain: str, config: S, place: Place) -> None:
        self.domain = domain
        self.config = config
        self.place = place
        self.made: dict[str, Job] = {}

    @property
    def large_products(self) -> bool:
        """Whether large float32 matrix products take the time of training."""
        return False

    def once(self, name: str, make: Callable[[], Job]) -> Job:
        """Return the job of this name; `make` makes it the first time."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def folder(self, path: str) -> str:
        """Return the path of a folder below the domain's results."""
        return f"{self.place.results}/{self.domain}/{path}"

    def pick(self, *keys: str) -> Json:
        """Return some settings of the domain by key."""
        return {key: getattr(self.config, key) for key in keys}

    def prepared(self) -> Job:
        """Return the job that prepares the data of the config's source."""
        raise NotImplementedError

    def download(self, source: Mapping[str, Any], file: str, *, mem_mb: int = 500, minutes: int = 60) -> Job:
        """Return the job that downloads a file of a source, which is an entry of sources.yaml."""
        path = f"{self.place.raw}/{source['name']}/{file}"
        return self.once(
            f"raw/{source['name']}/{file}",
            lambda: Job(
                stage="download",
                name=f"raw/{source['name']}/{file}",
                entry="fetching.download",
                config={"source": dict(source), "mirrors": self.place.mirrors},
                outputs={"file": path},
                record=f"{path}.run.json",
                log=f"{path}.log.txt",
                mem_mb=mem_mb,
                minutes=minutes,
            ),
        )

    def simulate(self, source: str, files: Iterable[str]) -> Job:
        """Return the job that generates the raw files of a source in `raw/{domain}-{source}`."""
        name = f"{self.domain}-{source}"
        folder = f"{self.place.raw}/{name}"
        return self.once(
            f"raw/{name}",
            lambda: Job(
                stage="simulate",
                name=f"raw/{name}",
                entry=f"domains.{self.domain}.data.simulate",
                config={"domain": self.domain, "source": source},
                outputs={file: f"{folder}/{file}" for file in files},
                record=f"{folder}/run.json",
                log=f"{folder}/log.txt",
            ),
        )

    def prepare(
        self, source: str, files: Mapping[str, str], *, config: Json, inputs: Files, mem_mb: int, minutes: int
    ) -> Job:
        """Return the job that prepares the raw files `inputs` of a source; `files`: names of its output files."""
        folder = self.folder(f"data/{source}")
        return self.once(
            f"{self.domain}/data/{source}",
            lambda: Job(
                stage="prepare",
                name=f"{self.domain}/data/{source}",
                entry=f"domains.{self.domain}.data.prepare",
                config=plain({"domain": self.domain} | config),
                inputs=inputs,
                outputs={name: f"{folder}/{file}" for name, file in files.items()},
                record=f"{folder}/run.json",
                log=f"{folder}/log.txt",
                mem_mb=mem_mb,
                minutes=minutes,
            ),
        )

    def training(
        self,
        stage: str,
        path: str,
        entry: str,
        config: Json,
        inputs: Files,
        *,
        mem_mb: int,
        minutes: int,
        threads: int = 1,
        alone: bool = False,
        resumable: bool = True,
    ) -> Job:
        """Return a job that trains: `pretrain`, `finetune` or `study`; `path` is its folder below the domain's results.

        `domain` is added to its config, and `checkpoint` if it is `resumable`, that is, keeps a checkpoint while it
        runs.
        """
        name, folder = f"{self.domain}/{path}", self.folder(path)
        checkpoint = {"checkpoint": f"{self.place.results}/.resume/{name}.pt"} if resumable else {}
        outputs = {"metrics": f"{folder}/metrics.csv", "series": f"{folder}/series.csv"}
        if stage == "pretrain":
            outputs = {"pretrained": f"{folder}/pretrained.pt"} | outputs
        return self.once(
            name,
            lambda: Job(
                stage=stage,
                name=name,
                entry=entry,
                config=plain({"domain": self.domain} | config | checkpoint),
                inputs=inputs,
                outputs=outputs,
                record=f"{folder}/run.json",
                log=f"{folder}/log.txt",
                threads=threads,
                alone=alone,
                large_products=self.large_products,
                mem_mb=mem_mb,
                minutes=minutes,
            ),
        )
