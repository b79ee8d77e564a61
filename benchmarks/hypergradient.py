"""Compare time, peak memory and agreement of one hypergradient: ours, a textbook loop, torchopt and higher.

The problem is an MLP 784-64-10 pre-trained on 3000 labelled images, of which a third have random labels, with one
meta-parameter per example:

    L_PT(w, phi) = mean_i sigmoid(phi_i) cross_entropy_i(w)        PT minibatch: all 3000 examples
    L_FT         = cross-entropy of a new head on the 64 features, after one differentiable SGD step of that head

The hypergradient is - g2 P d2L_PT/(dw dphi) with P = a sum_{i=0..terms} (I - a H)^i, where a is the PT learning rate.
All contenders start from the same weights (after some PT steps), call the same loss functions and return the same 3000
numbers.

    ours              metapt.hypergrad.hypergradient with diagnostics
    textbook          Lorraine et al. (2020), Algorithms 2 and 3, as in public code: autograd.grad and comprehensions
    torchopt          torchopt.diff.implicit.custom_root with torchopt.linear_solve.solve_inv(ns=True): the same series
    higher            terms + 1 SGD steps unrolled with higher, each step's *value* held at the given weights (the
                      gradient callback returns g - g.detach()): the unroll's derivative is the same series
    higher, moving    an ordinary unroll, whose weights move: another estimate (truncated backpropagation through PT),
                      equal to the series only where the PT gradient is zero

The contenders take turns in one process per thread count, in an order that rotates each round. Ratios are to our time
in the same round. Peak memory is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import importlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metapt.hypergrad import SGD, Neumann, Params, Pretrained, Unroll, hypergradient

HIDDEN, CLASSES = 64, 10
OURS = "ours"
LINUX = Path("/proc/self/clear_refs").exists()  # whether the kernel's record of peak memory can be reset


@dataclass(frozen=True)
class Settings:
    """Settings that determine the results of a worker process."""

    threads: int
    terms: list[int]
    rounds: int
    examples: int = 3000
    finetune_examples: int = 256
    pretrain_steps: int = 100
    learning_rate: float = 0.01
    seed: int = 0
    images: str | None = None


# The problem


class Batch(NamedTuple):
    images: Tensor
    labels: Tensor


class Task(NamedTuple):
    """Inputs of a hypergradient. `weights` and `head` are pairs of weight and bias, as in F.linear."""

    pretrain: Batch
    train: Batch
    validation: Batch
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    phi: Tensor
    head: tuple[Tensor, Tensor]
    learning_rate: float


def encode(weight: Tensor, bias: Tensor, images: Tensor) -> Tensor:
    return F.relu(F.linear(images, weight, bias))


def weighted_loss(logits: Tensor, phi: Tensor, labels: Tensor) -> Tensor:
    return (torch.sigmoid(phi) * F.cross_entropy(logits, labels, reduction="none")).mean()


def pretrain_loss(weights: tuple[Tensor, ...], phi: Tensor, batch: Batch) -> Tensor:
    logits = F.linear(encode(weights[0], weights[1], batch.images), weights[2], weights[3])
    return weighted_loss(logits, phi, batch.labels)


def finetuned_loss(weight: Tensor, bias: Tensor, task: Task) -> Tensor:
    """Return the FT validation loss after one differentiable SGD step of the FT head, as a function of the encoder."""
    head = [value.detach().requires_grad_() for value in task.head]
    train_loss = F.cross_entropy(F.linear(encode(weight, bias, task.train.images), *head), task.train.labels)
    gradients = torch.autograd.grad(train_loss, head, create_graph=True)
    tuned = [value - task.learning_rate * gradient for value, gradient in zip(head, gradients, strict=True)]
    return F.cross_entropy(F.linear(encode(weight, bias, task.validation.images), *tuned), task.validation.labels)


def make_task(settings: Settings, dtype: torch.dtype, examples: int | None = None) -> Task:
    """Return the inputs in `dtype`; float32 and float64 differ by rounding only."""
    generator = torch.Generator().manual_seed(settings.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    count = examples or settings.examples
    total = count + 2 * settings.finetune_examples
    images, labels = (
        mnist_images(Path(settings.images), total) if settings.images else random_images(total, normal, generator)
    )
    noisy = labels[:count].clone()
    noisy[::3] = torch.randint(CLASSES, noisy[::3].shape, generator=generator)
    batches = [Batch(part, names) for part, names in zip(images[count:].chunk(2), labels[count:].chunk(2), strict=True)]
    pretrain = Batch(images[:count], noisy)
    start = [normal(HIDDEN, 784) / 28, 0 * normal(HIDDEN), normal(CLASSES, HIDDEN) / 8, 0 * normal(CLASSES)]
    phi, head = normal(count), (normal(CLASSES, HIDDEN) / 8, 0 * normal(CLASSES))
    weights = [value.requires_grad_() for value in start]
    for _ in range(settings.pretrain_steps):
        gradients = torch.autograd.grad(pretrain_loss(tuple(weights), phi, pretrain), weights)
        weights = [
            (w - settings.learning_rate * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)
        ]

    def cast(value: Tensor) -> Tensor:
        return value.detach().to(dtype)

    pretrain, train, validation = (Batch(cast(batch.images), batch.labels) for batch in (pretrain, *batches))
    w1, b1, w2, b2 = map(cast, weights)
    return Task(
        pretrain, train, validation, (w1, b1, w2, b2), cast(phi), (cast(head[0]), cast(head[1])), settings.learning_rate
    )


def random_images(count: int, normal: Callable[..., Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images from ten overlapping Gaussian clusters in 784 dimensions with unit variance."""
    centres = 0.2 * normal(CLASSES, 784)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + normal(count, 784), labels


def mnist_images(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """Return the first images of MNIST's training files (IDX, gzipped or not), standardised."""

    def read(name: str) -> bytes:
        plain = folder / name
        return plain.read_bytes() if plain.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())

    pixels = torch.frombuffer(bytearray(read("train-images-idx3-ubyte")[16 : 16 + 784 * count]), dtype=torch.uint8)
    labels = torch.frombuffer(bytearray(read("train-labels-idx1-ubyte")[8 : 8 + count]), dtype=torch.uint8)
    return (pixels.reshape(-1, 784).double() / 255 - 0.1307) / 0.3081, labels.long()


# The contenders


class OurProblem:
    def pretrain_loss(self, pretrained: Pretrained, meta: Params, batch: Batch) -> Tensor:
        encoder, head, _ = pretrained
        logits = F.linear(encode(encoder["weight"], encoder["bias"], batch.images), head["weight"], head["bias"])
        return weighted_loss(logits, meta["phi"], batch.labels)

    def encode(self, encoder: Params, batch: Batch) -> Tensor:
        return encode(encoder["weight"], encoder["bias"], batch.images)

    def head_loss(self, head: Params, features: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(F.linear(features, head["weight"], head["bias"]), batch.labels)


def ours(task: Task, terms: int) -> Tensor:
    w1, b1, w2, b2 = task.weights
    pretrained = Pretrained({"weight": w1, "bias": b1}, {"weight": w2, "bias": b2})
    head = dict(zip(("weight", "bias"), task.head, strict=True))
    result = hypergradient(
        OurProblem(),
        pretrained,
        {"phi": task.phi},
        head,
        pretrain_batch=task.pretrain,
        train_batches=[task.train],
        validation_batch=task.validation,
        inverse=Neumann(terms=terms, step_size=task.learning_rate),
        finetuning=Unroll(steps=1, optimizer=SGD(lr=task.learning_rate)),
    )
    return result.gradient["phi"]


def textbook(task: Task, terms: int) -> Tensor:
    weights = [value.detach().requires_grad_() for value in task.weights]
    phi = task.phi.detach().requires_grad_()
    v = [*torch.autograd.grad(finetuned_loss(weights[0], weights[1], task), weights[:2])]
    v += [torch.zeros_like(value) for value in weights[2:]]
    gradient = torch.autograd.grad(pretrain_loss(tuple(weights), phi, task.pretrain), weights, create_graph=True)
    p = v
    for _ in range(terms):
        product = torch.autograd.grad(gradient, weights, grad_outputs=v, retain_graph=True)
        v = [a - task.learning_rate * b for a, b in zip(v, product, strict=True)]
        p = [a + b for a, b in zip(p, v, strict=True)]
    (result,) = torch.autograd.grad(gradient, phi, grad_outputs=[task.learning_rate * a for a in p])
    return -result


def torchopt_implicit(task: Task, terms: int) -> Tensor:
    import torchopt
    from torchopt.diff.implicit import custom_root

    def optimality(weights: tuple[Tensor, ...], phi: Tensor) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = torch.func.grad(pretrain_loss)(weights, phi, task.pretrain)
        return gradients

    series = torchopt.linear_solve.solve_inv(ns=True, maxiter=terms, alpha=task.learning_rate)

    def solution(weights: tuple[Tensor, ...], phi: Tensor) -> tuple[Tensor, ...]:
        return weights  # PT has ended at these weights

    phi = task.phi.detach().requires_grad_()
    w1, b1, *_ = custom_root(optimality, argnums=1, solve=series)(solution)(task.weights, phi)
    (result,) = torch.autograd.grad(finetuned_loss(w1, b1, task), phi)
    return result


class Network(nn.Module):
    def __init__(self, weights: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        super().__init__()
        self.w1, self.b1, self.w2, self.b2 = map(nn.Parameter, weights)

    def forward(self, images: Tensor) -> Tensor:
        return F.linear(encode(self.w1, self.b1, images), self.w2, self.b2)


def higher_unroll(task: Task, terms: int, *, hold: bool = True) -> Tensor:
    import higher

    network = Network(task.weights)
    phi = task.phi.detach().requires_grad_()
    callback = (lambda gradients: [g - g.detach() for g in gradients]) if hold else None
    optimizer = torch.optim.SGD(network.parameters(), lr=task.learning_rate)
    with higher.innerloop_ctx(network, optimizer) as (unrolled, steps):
        for _ in range(terms + 1):
            steps.step(weighted_loss(unrolled(task.pretrain.images), phi, task.pretrain.labels), grad_callback=callback)
        w1, b1, *_ = unrolled.parameters()
        (result,) = torch.autograd.grad(finetuned_loss(w1, b1, task), phi)
    return result


def higher_moving(task: Task, terms: int) -> Tensor:
    return higher_unroll(task, terms, hold=False)


class Contender(NamedTuple):
    gradient: Callable[[Task, int], Tensor]
    package: str | None
    same: bool  # whether it computes the same as ours, up to rounding


CONTENDERS = {
    OURS: Contender(ours, None, True),
    "textbook": Contender(textbook, None, True),
    "torchopt": Contender(torchopt_implicit, "torchopt", True),
    "higher": Contender(higher_unroll, "higher", True),
    "higher, moving": Contender(higher_moving, "higher", False),
}


def missing() -> dict[str, str]:
    """Return the contenders whose package can't be imported, with the reason."""
    absent = {}
    for name, contender in CONTENDERS.items():
        try:
            importlib.import_module(contender.package or "torch")
        except ImportError as error:
            absent[name] = str(error)
    return absent


# Measuring, in worker processes


def time_worker(settings: Settings) -> dict[str, Any]:
    """Return seconds per call and round, and agreement with ours, of each contender and number of terms."""
    torch.set_num_threads(settings.threads)
    single, double = make_task(settings, torch.float32), make_task(settings, torch.float64)
    absent = missing()
    present = {name: contender for name, contender in CONTENDERS.items() if name not in absent}
    seconds: dict[str, dict[int, list[float]]] = {name: {terms: [] for terms in settings.terms} for name in present}
    agreement: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in present}
    for terms in settings.terms:
        exact, rounded = ours(double, terms), ours(single, terms)
        for name, contender in present.items():
            agreement[name][terms] = {
                "float32": compare(contender.gradient(single, terms), rounded),
                "float64": compare(contender.gradient(double, terms), exact),
            }
    names = list(present)
    gc.freeze()  # excludes the imported objects from garbage collection
    for round_ in range(-2, settings.rounds):  # two warm-up rounds
        shift = round_ % len(names)
        for terms in settings.terms:
            for name in names[shift:] + names[:shift]:
                gc.collect()
                gc.disable()
                begin = time.perf_counter()
                present[name].gradient(single, terms)
                elapsed = time.perf_counter() - begin
                gc.enable()
                if round_ >= 0:
                    seconds[name][terms].append(elapsed)
    return {"seconds": seconds, "agreement": agreement}


def compare(value: Tensor, reference: Tensor) -> dict[str, float]:
    value, reference = value.double(), reference.double()
    difference = torch.linalg.vector_norm(value - reference) / torch.linalg.vector_norm(reference)
    return {"cosine": float(F.cosine_similarity(value, reference, dim=0)), "difference": float(difference)}


def memory_worker(settings: Settings, name: str, terms: int) -> dict[str, Any]:
    """Return the peak resident memory of a call (median of three) on top of what the process held before.

    A call on 64 examples comes first and loads the code. `worker` makes malloc return freed memory at once.
    """
    torch.set_num_threads(settings.threads)
    settings = replace(settings, pretrain_steps=0)
    CONTENDERS[name].gradient(make_task(settings, torch.float32, examples=64), 1)
    task = make_task(settings, torch.float32)
    increments = []
    for _ in range(3):
        gc.collect()
        before = reset_peak()
        CONTENDERS[name].gradient(task, terms)
        increments.append(peak() - before)
    return {"bytes": statistics.median(increments)}


def reset_peak() -> int:
    """Set the kernel's record of peak memory to the current resident memory, and return that."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def worker(kind: str, settings: Settings, *arguments: Any) -> dict[str, Any]:
    """Run one measurement in its own process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads), "OMP_WAIT_POLICY": "passive"}
    environment["PYTHONWARNINGS"] = "ignore"  # torchopt calls deprecated functions, once per call
    if kind == "memory":
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    command = [sys.executable, __file__, "--worker", json.dumps([kind, asdict(settings), *arguments])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def serve(request: str) -> None:
    kind, settings, *arguments = json.loads(request)
    answer = time_worker(Settings(**settings)) if kind == "time" else memory_worker(Settings(**settings), *arguments)
    print(json.dumps(answer))


# Reporting


def measure(settings: Settings) -> list[dict[str, Any]]:
    """Return one row per number of terms and contender."""
    timed = worker("time", settings)
    rows = []
    for terms in settings.terms:
        reference = timed["seconds"][OURS][str(terms)]
        for name, contender in CONTENDERS.items():
            row: dict[str, Any] = {
                "threads": settings.threads,
                "terms": terms,
                "contender": name,
                "same": contender.same,
            }
            if name in timed["seconds"]:
                seconds = timed["seconds"][name][str(terms)]
                row |= {
                    "seconds": seconds,
                    "ratios": [other / own for other, own in zip(seconds, reference, strict=True)],
                    "peak_bytes": worker("memory", settings, name, terms)["bytes"] if LINUX else None,
                    **timed["agreement"][name][str(terms)],
                }
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    columns = [
        "threads",
        "terms",
        "contender",
        "ms: median (min-max)",
        "time / ours: median (quartiles)",
        "peak MB",
        "cosine to ours, float32",
        "float64",
        "relative difference, float32",
        "float64",
    ]
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in [columns, ["---"] * len(columns), *map(cells_of, rows)]
    )


def cells_of(row: dict[str, Any]) -> list[str]:
    start = [str(row["threads"]), str(row["terms"]), row["contender"]]
    if "seconds" not in row:
        return [*start, "not installed", *[""] * 6]
    times = [1e3 * value for value in row["seconds"]]
    low, middle, high = statistics.quantiles(row["ratios"], n=4)
    return [
        *start,
        f"{statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f})",
        f"{middle:.2f} ({low:.2f}-{high:.2f})",
        "?" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.1f}",
        *(f"{row[precision]['cosine']:.7f}" for precision in ("float32", "float64")),
        *(f"{row[precision]['difference']:.0e}" for precision in ("float32", "float64")),
    ]


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Return sentences on the fastest other contender, and on the least cosine among equal computations."""
    lines = []
    for threads, terms in dict.fromkeys((row["threads"], row["terms"]) for row in rows):
        case = [row for row in rows if (row["threads"], row["terms"]) == (threads, terms) and "seconds" in row]
        others = [row for row in case if row["contender"] != OURS]
        fastest = min(others, key=lambda row: statistics.median(row["ratios"]))
        least = min((row for row in others if row["same"]), key=lambda row: row["float32"]["cosine"])
        ratio, cosine = statistics.median(fastest["ratios"]), least["float32"]["cosine"]
        lines.append(
            f"- {threads} thread(s), {terms} term(s): the fastest other is {fastest['contender']}, in {ratio:.3f} of "
            f"our time; least cosine of an equal computation, in float32: {cosine:.7f} ({least['contender']})"
        )
    return lines


def machine() -> str:
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    packages = ", ".join(f"{name} {installed(name)}" for name in ("torch", "higher", "torchopt"))
    return f"{model}, {os.cpu_count()} cores, {platform.system()}; Python {platform.python_version()}, {packages}"


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 4], help="thread counts, one after the other (default 1 4)"
    )
    parser.add_argument("--terms", type=int, nargs="+", default=[1, 5, 20], help="Neumann terms (default 1 5 20)")
    parser.add_argument("--rounds", type=int, default=30, help="timed calls per contender (default 30)")
    parser.add_argument("--examples", type=int, default=3000, help="PT examples, each with a weight (default 3000)")
    parser.add_argument("--images", metavar="FOLDER", help="folder of MNIST's IDX files; random images if left out")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every number there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options.worker)
        return
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}; legal: 2 or more")
    for name, reason in missing().items():
        print(f"{name} is left out ({reason}); to include it: pip install -r benchmarks/requirements.txt")
    # Folders of this machine are left out of the command.
    words = ["FOLDER" if word == options.images else word for word in sys.argv[1:]]
    images = "MNIST" if options.images else "random images"
    facts = {
        "command": shlex.join(["python", "benchmarks/hypergradient.py", *words]),
        "machine": machine(),
        "load": f"{os.getloadavg()[0]:.1f} before the run (other processes' share of the cores)",
        "problem": f"MLP 784-{HIDDEN}-{CLASSES}, {options.examples} example weights, {images}, float32, "
        f"{options.rounds} rounds",
    }
    print(*(f"- {key}: {value}" for key, value in facts.items()), "", sep="\n")
    rows = []
    for threads in options.threads:
        rows += measure(Settings(threads, options.terms, options.rounds, options.examples, images=options.images))
    print(table(rows), "", *verdicts(rows), sep="\n")
    if options.json:
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
