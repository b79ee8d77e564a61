"""Reading and checking the file that PT leaves for FT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metapt.domains.ppi.config import Network
from metapt.domains.ppi.gin import initial_pretrained, load_pretrained
from metapt.errors import DataError
from metapt.training.pretrained_file import Learned, save_pretrained

NETWORK = Network(layers=2, width=4)
LEARNED = Learned(
    initial_pretrained(2, 4, 10, torch.Generator().manual_seed(0)), {"task_weights": torch.linspace(-1, 1, 10)}
)


def test_equal_tensors_give_equal_bytes_wherever_they_lie(tmp_path: Path) -> None:
    save_pretrained(LEARNED, tmp_path / "a.pt")
    slices = {name: torch.stack([value, value])[1] for name, value in LEARNED.meta.items()}
    save_pretrained(LEARNED._replace(meta=slices), tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_a_file_that_no_pretraining_left_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "pretrained.pt"
    with pytest.raises(DataError, match=r"pretrained\.pt is missing: the PT run that writes it has not been made"):
        load_pretrained(path, NETWORK, "cpu")
    save_pretrained(LEARNED, path)
    for layers, width in ((3, 4), (1, 4), (2, 5)):
        with pytest.raises(DataError, match=f"has no encoder of {layers} layers of width {width}, of which "):
            load_pretrained(path, Network(layers=layers, width=width), "cpu")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"pretrained\.pt is cut or altered"):
        load_pretrained(path, NETWORK, "cpu")
    torch.save({"encoder": {}, "head": {}, "buffers": {}, "meta": [1]}, path)
    with pytest.raises(DataError, match="is not what PT leaves, which is encoder, head, buffers, meta"):
        load_pretrained(path, NETWORK, "cpu")
