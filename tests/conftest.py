"""Settings of all tests: the number of examples that Hypothesis tries, threads, and no waits for the disk."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from hypothesis import settings

from metapt.training import capture, checkpoint

from . import devices, graphs, kernels

settings.register_profile("quick", max_examples=20)
settings.register_profile("whole", max_examples=300)
settings.load_profile("whole")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: the tensors are small, so more threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Leave the writing of files to the system: only a power failure could tell, and a file takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def code_is_read_once() -> Iterator[None]:
    """Let checkpoints know the digest of a job's code from the first one: no test changes the package itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "code_digest", cache(checkpoint.code_digest))
        yield


@pytest.fixture(scope="session")
def rehearse() -> Callable[..., dict[str, int]]:
    """Return the function that runs a step on a rehearsed accelerator; see `devices.rehearse`."""
    return devices.rehearse


@pytest.fixture(scope="session")
def launches() -> Callable[..., Counter[str]]:
    """Return the function that counts what a step launches on a GPU; see `kernels.launches`."""
    return kernels.launches


@pytest.fixture(scope="session")
def queue_on_gpu() -> Callable[..., None]:
    """Return the function that fails if a step waits for a GPU; see `devices.queue_on_gpu`."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU; torch.cuda.is_available() is false")
    return devices.queue_on_gpu


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let the CPU record functions as a GPU does; return the function that counts recordings."""
    monkeypatch.setattr(capture, "_KIND", "cpu")
    monkeypatch.setattr(capture, "CaptureStream", graphs.CaptureStream)
    monkeypatch.setattr(graphs.CaptureStream, "recordings", 0)
    return lambda: graphs.CaptureStream.recordings
