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

TRAINING = ("pretrain", "finetune", "study")
"""The stages that train with torch."""

S = TypeVar("S", bound=DomainSection)


@dataclass(frozen=True)
class Job:
    """One run of a stage.

    Attributes:
        stage: `download`, `simulate`, `prepare`, `pretrain`, `finetune`, `study`, `summarise` or `collect`.
        name: unique, in the form of a path: `ecg/pretrain/meta/n500/seed0`.
        entry: the module inside the package whose function `run(config, inputs, outputs, machine)` does the work, such
            as `domains.ecg.pretrain_run`; for the stage `summarise`, the module that holds the record `EXPERIMENT`.
        config: sorted dictionaries, lists and scalars.
        inputs: paths by name.
        outputs: paths by name, without the record.
        record: path of its `run.json`, see `metapt.records`.
        log: path of its log.
        threads: CPU threads.
        alone: whether no other job may run at the same time, because its time is a result.
        mem_mb: memory in megabytes.
        minutes: time limit.
    """

    stage: str
    name: str
    entry: str
    config: Json = field(default_factory=dict)
    inputs: Files = field(default_factory=dict)
    outputs: Files = field(default_factory=dict)
    record: str = ""
    log: str = ""
    threads: int = 1
    alone: bool = False
    mem_mb: int = 2000
    minutes: int = 10

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
    """Where the jobs of a config read and write.

    Attributes:
        results: folder of everything that the workflow makes.
        raw: folder of raw data.
        sources: the content of sources.yaml.
        mirrors: see `Data.mirrors` of the config.
        gpu: whether training asks for a GPU.
    """

    results: str
    raw: str
    sources: Mapping[str, Any]
    mirrors: list[str]
    gpu: bool = False


class Jobs(Generic[S]):
    """The jobs of a domain. Each method returns a job and keeps it, and the jobs that it needs, in `made`.

    Args:
        domain: name of the domain.
        config: its section of the config.
        place: where its files are.

    Attributes:
        made: jobs by name.
    """

    def __init__(self, domain: str, config: S, place: Place) -> None:
        self.domain = domain
        self.config = config
        self.place = place
        self.made: dict[str, Job] = {}

    def once(self, name: str, make: Callable[[], Job]) -> Job:
        """Return the job of this name; `make` makes it the first time."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def folder(self, path: str) -> str:
        """Return the path of a folder below the domain's results."""
        return f"{self.place.results}/{self.domain}/{path}"

    def prepared(self) -> Job:
        """Return the job that prepares the data of the config's source."""
        raise NotImplementedError

    def download(self, source: Mapping[str, Any], file: str, *, mem_mb: int = 500, minutes: int = 60) -> Job:
        """Return the job that downloads a file of a source.

        Args:
            source: an entry of sources.yaml.
            file: name of the file in it.
            mem_mb: memory in megabytes.
            minutes: time limit.
        """
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
        """Return a job that trains.

        Args:
            stage: `pretrain`, `finetune` or `study`.
            path: its folder below the domain's results.
            entry: see `Job`.
            config: see `Job`; `domain` is added, and `checkpoint` if the job is `resumable`.
            inputs: see `Job`.
            mem_mb: memory in megabytes.
            minutes: time limit.
            threads: CPU threads.
            alone: see `Job`.
            resumable: whether the job keeps a checkpoint while it runs.
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
                mem_mb=mem_mb,
                minutes=minutes,
            ),
        )
