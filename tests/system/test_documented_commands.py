"""Links and commands of README, docs and comments: legal options and targets, and run as far as seconds allow."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from snakemake.cli import parse_args

from metapt.cli import main, parser
from metapt.engine.config import load
from metapt.engine.plan import Plan, planned

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "config", "docs")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))]
COMMENTED = [ROOT / "Makefile", *(ROOT / "config").rglob("*.yaml"), *(ROOT / "workflow/profiles").rglob("*.yaml")]
PROGRAMS = ("snakemake", "metapt", "make", "python3?", "pip", "pytest", "srun", "torchrun", "paper")

UNCHECKED = {"tmux", "git", "cd", ".", "$EDITOR", "pre-commit", "rsync", "squeue", "awk", "xargs", "tail", "find"}
"""Programs that are not this project's."""

BENCHMARKS = tuple(f"benchmarks/{name}.py" for name in ("ecg", "ppi", "precision", "paired"))

ESTIMATE = "srun --gres=gpu:1 metapt estimate …"  # of which the part behind srun is checked
FRAGMENTS = re.compile(
    r"paper|metapt( estimate)?|metapt run RUN\.json( --into DIR)?|python -m metapt run|pip (download|freeze)"
    r"|pip install --no-index --find-links"
    r"|snakemake ecg_best_epoch .*"  # an experiment that tests/system/test_extending.py adds
)
"""What sentences mention without all of its arguments."""

OVERLAYS = {
    "k5.yaml": "mnist:\n  rotation_mean:\n    arms:\n      k5: {extends: meta-shared, unroll_steps: 5}\n",
    "species.yaml": "results: results/yeasts\nppi:\n  string: {species: [4932, 284812]}\n  test_species: [284812]",
    "width.yaml": "results: results/width16\necg: {width: 16}",
    "capture.yaml": "results: results/captured\necg: {capture: true}",
    "sizes.yaml": "ecg: {full_access: {arms: [no_pt, simclr, simclr-mild], finetune_sizes: [100, 250, 1000, 2500]}}",
    "mine.yaml": "results: results/mine\necg:\n  source: folder\n  folder: {path: data/mine, seconds: 10, fit: both}\n"
    "  full_access: {arms: [no_pt, simclr, meta], finetune_sizes: [500]}",
    "xl.yaml": "results: results/rivals500\necg:\n  arms:\n    simclr-joint_time: {pretrain: {epochs: 75}}\n"
    "    simclr-bissl_time: {pretrain: {epochs: 150}}\n",
    "site.yaml": "data:\n  mirrors: [/shared/mirror]",
}
"""Files that pages tell to write, as they show them."""


def words_of(line: str) -> list[list[str]]:
    """The simple commands of a line of a shell, without comments, variables and what joins them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            found.append([])
        elif found[-1] or not re.fullmatch(r"[A-Z_]+=\S*", word):
            found[-1].append(word)
    return [words for words in found if words]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of each command, aliases expanded."""
    for page in PAGES:
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        aliases: dict[str, list[str]] = {}
        lines = []
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.M | re.S):
            is_bash = language == "bash"
            assert is_bash or not re.search(rf"^({'|'.join(PROGRAMS)}) ", block, flags=re.M), f"{name}: not bash"
            lines += block.splitlines() if is_bash else []
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        for line in re.findall(r"`([^`\n]+)`", prose):
            if re.match(rf"({'|'.join(PROGRAMS)})( |$)", line) and not FRAGMENTS.fullmatch(line):
                lines.append("metapt estimate --configfile config/paper.yaml" if line == ESTIMATE else line)
        for line in lines:
            for words in words_of(line):
                if words[0] == "alias":
                    alias, _, value = words[1].partition("=")
                    aliases[alias] = shlex.split(value)
                else:
                    yield name, aliases.get(words[0], words[:1]) + words[1:]
    for path in COMMENTED:
        for line in re.findall(rf"^#.*?\b((?:{'|'.join(PROGRAMS)}) .*)", path.read_text(), flags=re.M):
            words = words_of(re.split(r"  +|;", line)[0])[0]
            yield str(path.relative_to(ROOT)), words[:2] if words[0] == "make" else words


ALL = list(commands())
SNAKEMAKE = sorted({shlex.join(words) for _, words in ALL if words[0] == "snakemake"})
OTHERS = sorted({(name, shlex.join(words)) for name, words in ALL if words[0] != "snakemake"})


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what commands read, with the files that pages tell to write."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("config", "workflow"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "docs").symlink_to(ROOT / "docs")  # tables of runs
    (folder / "data/mine").mkdir(parents=True)
    (folder / "data/mine/labels.csv").touch()
    for name, text in OVERLAYS.items():
        (folder / name).write_text(text)
    return folder


def test_commands_are_found() -> None:
    pages = {name for name, _ in ALL}
    assert pages >= {"README.md", "docs/cluster.md", "docs/results/ecg.md", "Makefile"}
    assert "config/ablations/neumann-terms.yaml" in pages
    assert len(SNAKEMAKE) > 10


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlays_are_those_of_the_pages(name: str) -> None:
    assert any(re.search(rf"^# {name}\n{re.escape(OVERLAYS[name])}", page.read_text(), flags=re.M) for page in PAGES)


@cache
def plan_of(*configs: Path) -> Plan:
    return planned(load(configs))


@pytest.mark.parametrize("command", SNAKEMAKE)
def test_snakemake_has_its_options_and_the_plan_its_targets(
    command: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_dry_run` shows that Snakemake plans the same."""
    monkeypatch.chdir(project)
    without_slurm = command.replace("--workflow-profile workflow/profiles/slurm", "--cores 1")  # it may be missing
    _, options = parse_args(without_slurm.split()[1:])
    plan = plan_of(*(options.configfile or [Path("config/config.yaml")]))
    for target in options.targets:
        if not any(name == target or name.startswith(f"{target}_") for name in plan.summaries):
            assert plan.maker(target)


@pytest.mark.parametrize(("page", "command"), OTHERS, ids=[f"{page}: {command}" for page, command in OTHERS])
def test_it_is_a_command(
    page: str, command: str, project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    words = shlex.split(command)
    program, arguments = words[0], words[1:]
    if program in UNCHECKED:
        return
    if program in ("python", "python3"):
        python(arguments, project, monkeypatch)
    elif program == "metapt":
        metapt(arguments, project, monkeypatch)
    elif program == "make":
        subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)
    elif program == "pip":
        pip(arguments)
    elif program == "torchrun":
        torchrun(arguments, project)
    elif program == "export":
        assert all(re.fullmatch(r"[A-Z_]+=\S+", argument) for argument in arguments)
    elif program == "pytest":
        marked = [marker for option, marker in pairwise(arguments) if option == "-m"]
        assert {marker.partition(":")[0] for marker in request.config.getini("markers")} >= set(marked)
        paths = [argument for argument in arguments if not argument.startswith("-") and argument not in marked]
        assert all((ROOT / path).exists() for path in paths)
    else:
        pytest.fail(f"{page} has the command {command!r}, which this test does not know how to check")


def metapt(arguments: list[str], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    if arguments in (["--help"], ["--version"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
        return
    options = parser().parse_args(arguments)
    if options.command == "estimate" or (options.command == "run" and options.configfile):
        load(options.configfile)
    elif options.command == "check":
        assert main(arguments) == 0
    else:
        # They need a finished run, or write into the project.
        assert options.command in ("run", "docs", "summary", "table", "headroom")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", file.read_text(), flags=re.M)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, target


def python(arguments: list[str], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    if arguments[:2] == ["-m", "metapt.domains.ppi.data.convert"]:
        from metapt.domains.ppi.data import convert

        assert convert.main(arguments[2:]) == 1  # the archive is not there
    elif arguments[:2] == ["-m", "metapt"]:
        metapt(arguments[2:], project, monkeypatch)
    elif arguments[0] == "-c":
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    elif arguments[0] in BENCHMARKS:
        monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
        import_module(Path(arguments[0]).stem).parser().parse_args(arguments[1:])
    else:
        assert arguments[:2] == ["-m", "venv"] or (ROOT / arguments[0]).is_file()


def torchrun(arguments: list[str], project: Path) -> None:
    *options, script = arguments
    short = (ROOT / script).read_text().replace("iterations=200", "iterations=2").replace("warmup=40", "warmup=1")
    end = "import atexit, torch; atexit.register(lambda: print(torch.distributed.is_initialized()))\n"
    (project / "short.py").write_text(end + short)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, "short.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Learned noise") == 1
    assert done.stdout.count("False") == 2, "without that a process may abort at its exit"


def pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for option, value in pairwise(arguments):
        if option in ("-r", "--constraint"):
            assert (ROOT / value).is_file()
        if option == "--editable":
            assert set(value[2:-1].split(",")) <= set(extras)
