"""What an encoder makes of many graphs, and how well a given head tells tasks apart on them."""

from __future__ import annotations

import torch
from torch import Tensor

from metapt.domains.ppi.data.dataset import PpiDataset
from metapt.domains.ppi.gin import GinEncoder, logits
from metapt.evaluation.auroc import mean_auroc
from metapt.hypergrad import Params
from metapt.twostage.heads import in_chunks

CHUNK = 256
"""Graphs in a forward pass without gradients."""


@torch.no_grad()
def head_aurocs(
    encoder: GinEncoder,
    network: Params,
    head: Params,
    dataset: PpiDataset,
    indices: Tensor,
    tasks: Tensor | None = None,
) -> float:
    """The mean AUROC, per cent, of a head as it is, on the graphs `indices`, over the FT tasks with both labels.

    Args:
        encoder: the network, in eval mode.
        network: its parameters and buffers.
        head: one row per FT task.
        dataset: all graphs.
        indices: numbers of graphs.
        tasks: numbers of the head's FT tasks; None: all.

    Raises:
        DataError: no task has both labels.
    """
    labels = dataset.fine(indices) if tasks is None else dataset.fine(indices)[:, tasks]
    return 100 * float(mean_auroc(logits(head, features_of(encoder, network, dataset, indices)), labels).value)


@torch.no_grad()
def features_of(encoder: GinEncoder, network: Params, dataset: PpiDataset, indices: Tensor) -> Tensor:
    """[n, 2 width], BatchNorm in eval mode, no dropout; a few graphs at a time, so that memory does not grow with n."""
    return in_chunks(lambda chunk: encoder(network, dataset.batch(chunk), training=False), indices, CHUNK)
