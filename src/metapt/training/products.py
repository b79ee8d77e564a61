"""The choice of the library that multiplies float32 matrices on a CPU.

torch hands float32 products to MKL, which reaches half the speed of oneDNN on some processors. With
`torch.set_float32_matmul_precision("medium")` they go to oneDNN. That setting allows products of reduced precision, and
whether oneDNN uses that permission depends on the processor: so the choice is made by a look at the error of a product
and at its time.

oneDNN is slower for small products. So only jobs with large products (`Job.large_products`) make this test. The
product that is timed has the shape of one in a layer of the paper's GIN. oneDNN computes it 1.3 to 1.7 times as fast on
Zen 4; of a product of 384 x 384 matrices, which fits into a core's own cache, the ratio there is 1.07.

Results of the two libraries differ in their last bits, and a time is never the same twice. Three things make the choice
the same in all runs on a machine: "medium" must be faster by a margin that no processor that we know is near to; the
time is that of the processor, which other jobs hardly change; and the first choice is kept in a file, which later runs
take over. `VARIABLE` overrules both.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from metapt.errors import ConfigError
from metapt.files import atomic_path

VARIABLE = "METAPT_FLOAT32_PRODUCTS"
"""Environment variable that names the setting."""

SETTINGS = ("highest", "medium")
LARGEST_ERROR = 1e-6
MARGIN = 1.1
_SHAPE = (1280, 600, 300)
"""A minibatch of 32 graphs of 40 nodes, and the widths of a layer's input and output."""
_ROUNDS = 7
_SECONDS = 0.1
_IDENTIFYING = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")


@dataclass(frozen=True)
class Products:
    """A setting of `torch.set_float32_matmul_precision`, and why it was chosen.

    Attributes:
        setting: "highest" or "medium"; of all attributes the only one that results depend on.
        reason: where the setting comes from.
        errors: of each setting that was tried, the error of a product relative to float64 (Frobenius norm).
        rates: of each setting that was tried, GFLOP per second of processor time.
    """

    setting: str
    reason: str
    errors: dict[str, float]
    rates: dict[str, float]

    def __str__(self) -> str:
        looked = ", ".join(
            f"{name} {self.rates[name]:.0f} GFLOP/s at an error of {self.errors[name]:.1e}" for name in self.rates
        )
        return f"float32 matrix products: {self.setting} ({self.reason}{'; ' + looked if looked else ''})"

    def apply(self) -> None:
        """Make this the setting of the process."""
        torch.set_float32_matmul_precision(self.setting)


def decide(device: str, folder: Path | None = None) -> Products:
    """Return the setting for this process, without applying it.

    Args:
        device: on a GPU it is always "highest", since "medium" is inexact there.
        folder: where the first choice for this kind of processor and version of torch is kept; None to keep none.

    Raises:
        ConfigError: the environment variable names no setting.
        MachineError: the folder can't be written.
    """
    named = os.environ.get(VARIABLE)
    if named not in (None, *SETTINGS):
        raise ConfigError(
            f"the environment variable {VARIABLE} is {named!r}; legal: {' or '.join(SETTINGS)}, or not set"
        )
    if device != "cpu":
        return Products("highest", "on a GPU", {}, {})
    if named is not None:
        return Products(named, f"{VARIABLE} is set", {}, {})
    if folder is None:
        return look()
    path = folder / f"products-{_processor()}.json"
    if kept := _read(path):
        return kept
    products = look()
    if kept := _read(path):  # another job may have begun at the same time, and all must have one setting
        return kept
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(asdict(products), indent=1), encoding="utf-8")
    return products


def look() -> Products:
    """Measure the error and the speed of a product under each setting; takes about 100 ms of processor time.

    The setting of the process is the same afterwards.
    """
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    rows, inner, columns = _SHAPE
    left, right = (torch.randn(shape, generator=generator) for shape in ((rows, inner), (inner, columns)))
    exact = left.double() @ right.double()
    errors: dict[str, float] = {}
    times: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    try:
        for setting in SETTINGS:  # also loads the libraries
            torch.set_float32_matmul_precision(setting)
            errors[setting] = float((_product(left, right).double() - exact).norm() / exact.norm())
        end = time.process_time() + _SECONDS
        while len(times["medium"]) < 2 or (len(times["medium"]) < _ROUNDS and time.process_time() < end):
            for setting in SETTINGS:
                torch.set_float32_matmul_precision(setting)
                start = time.process_time()
                _product(left, right)
                times[setting].append(time.process_time() - start)
    finally:
        torch.set_float32_matmul_precision(before)
    rates = {setting: 2e-9 * math.prod(_SHAPE) / max(min(values), 1e-9) for setting, values in times.items()}
    if not errors["medium"] <= LARGEST_ERROR:
        return Products("highest", f"medium is less exact than {LARGEST_ERROR:.0e}", errors, rates)
    if not rates["medium"] >= MARGIN * rates["highest"]:
        return Products("highest", f"medium is not {MARGIN} times as fast", errors, rates)
    return Products("medium", f"exact to {LARGEST_ERROR:.0e} and at least {MARGIN} times as fast", errors, rates)


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


def _read(path: Path) -> Products | None:
    """Return the choice that is kept in a file; None where there is none."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["setting"] not in SETTINGS:
            return None
        return Products(kept["setting"], f"as {path} says: {kept['reason']}", kept["errors"], kept["rates"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _processor() -> str:
    """Return a name of the kind of processor with the version of torch, 12 hexadecimal digits."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    kept = [line for line in lines if line.split(":")[0].strip() in _IDENTIFYING]
    text = "\n".join([*kept, torch.backends.cpu.get_cpu_capability(), torch.__version__])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
