"""The records that the plan of a config consists of. They need no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metapt.engine.digest import code_digest
from metapt.sections import DomainSection, JobSettings, ResumableSettings, SimulateSettings, plain

Json = dict[str, Any]
Files = dict[str, str]
"""Name -> path."""

TRAINING = ("pretrain", "finetune", "study")  # the stages that train with torch

S = TypeVar("S", bound=DomainSection)


@dataclass(frozen=True)
class Job:
    """One run of a stage."""

    stage: str  # `download`, `simulate`, `prepare`, `pretrain`, `finetune`, `study`, `summarise` or `page`
    name: str  # unique, in the form of a path: `ecg/pretrain/meta/n500/seed0`
    # the module inside the package whose function `run(settings, inputs, outputs, machine)` does the work, such as
    # `domains.ecg.pretrain`; for the stage `summarise`, the module that holds the record `EXPERIMENT`
    entry: str
    config: Json = field(default_factory=dict)  # sorted dictionaries, lists and scalars
    inputs: Files = field(default_factory=dict)  # paths by name
    outputs: Files = field(default_factory=dict)  # paths by name, without the record
    record: str = ""  # path of its `run.json`, see `metapt.engine.records`
    log: str = ""  # path of its log
    threads: int = 1  # CPU threads
    alone: bool = False  # whether no other job may run at the same time, because its time is a result
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
class RawData:
    """What stand-ins of prepared data stand for, see `metapt estimate`."""

    size: float  # bytes of the raw files
    seconds: float  # CPU seconds of their preparation
    share: float = 1.0  # of the real data that the stand-in holds


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
    def sharing(self) -> Mapping[str, str]:
        """Arm -> the first arm of the config with the same PT, whose PT runs serve both; see `twostage.arms.sharing`.

        An arm that is left out has PT runs of its own.
        """
        return {}

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
        """Return the job that downloads a file of a source, which is an entry of sources.yaml."""
        name, path = f"raw/{source['name']}/{file}", f"{self.place.raw}/{source['name']}/{file}"
        config = {"source": dict(source), "mirrors": self.place.mirrors}
        place: Json = {"outputs": {"file": path}, "record": f"{path}.run.json", "log": f"{path}.log.txt"}
        limits: Json = {"mem_mb": mem_mb, "minutes": minutes}
        return self.once(name, lambda: Job("download", name, "fetching", config, **place, **limits))

    def simulate(self, source: str, files: Iterable[str]) -> Job:
        """Return the job that generates the raw files of a source in `raw/{domain}-{source}`."""
        name = f"raw/{self.domain}-{source}"
        folder = f"{self.place.raw}/{self.domain}-{source}"
        outputs = {file: f"{folder}/{file}" for file in files}
        entry, settings = f"domains.{self.domain}.data.simulate", SimulateSettings(source=source)
        return self._made("simulate", name, entry, folder, settings, outputs=outputs)

    def raw(self, files: Iterable[str], **limits: int) -> Files:
        """Return the raw files of the config's source: generated ones, or as sources.yaml lists them."""
        source = str(getattr(self.config, "source", ""))
        if source in self.config.stand_ins:
            return self.simulate(source, files).outputs
        listed = self.place.sources[source]
        return {file: self.download(listed, file, **limits).outputs["file"] for file in files}

    def prepare(
        self,
        source: str,
        files: Mapping[str, str],
        settings: JobSettings,
        inputs: Files,
        *,
        module: str = "prepare",
        **limits: int,
    ) -> Job:
        """Return the job that prepares the raw files `inputs` of a source; `files`: names of its output files.

        `module`, in the domain's `data`, does it. `limits` are `mem_mb` and `minutes` of the `Job`.
        """
        name, entry = f"{self.domain}/data/{source}", f"domains.{self.domain}.data.{module}"
        folder = self.folder(f"data/{source}")
        outputs = {output: f"{folder}/{file}" for output, file in files.items()}
        return self._made("prepare", name, entry, folder, settings, inputs=inputs, outputs=outputs, **limits)

    def training(
        self,
        stage: str,
        path: str,
        entry: str,
        settings: JobSettings,
        inputs: Files,
        *,
        resumable: bool = True,
        **limits: Any,
    ) -> Job:
        """Return a job that trains: `pretrain`, `finetune` or `study`; `path` is its folder below the domain's results.

        The settings get the path of the checkpoint if the job is `resumable`. `limits` are `mem_mb`, `minutes`,
        `threads` and `alone` of the `Job`.
        """
        name, folder = f"{self.domain}/{path}", self.folder(path)
        if resumable and isinstance(settings, ResumableSettings):
            settings = settings.model_copy(update={"checkpoint": f"{self.place.results}/.resume/{name}.pt"})
        outputs = {"pretrained": f"{folder}/pretrained.pt"} if stage == "pretrain" else {}
        outputs |= {"metrics": f"{folder}/metrics.csv", "series": f"{folder}/series.csv"}
        return self._made(stage, name, entry, folder, settings, inputs=inputs, outputs=outputs, **limits)

    def _made(self, stage: str, name: str, entry: str, folder: str, settings: JobSettings, **rest: Any) -> Job:
        """Return the job of this name, with record and log in its folder; `rest` are further fields of the `Job`."""

        def make() -> Job:
            own = plain(settings.model_copy(update={"domain": self.domain}))
            return Job(stage, name, entry, own, record=f"{folder}/run.json", log=f"{folder}/log.txt", **rest)

        return self.once(name, make)
