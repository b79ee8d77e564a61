"""Features of many graphs, and the AUROC of a given head on them."""

from __future__ import annotations

import torch
from torch import Tensor

from metapt.domains.ppi.data.dataset import PpiDataset
from metapt.domains.ppi.gin import GinEncoder, logits
from metapt.evaluation.auroc import mean_auroc
from metapt.hypergrad import Params
from metapt.twostage.heads import in_chunks

CHUNK = 64  # graphs per forward pass without gradients; a sixth faster than 256, whose activations fit into no cache


@torch.no_grad()
def head_aurocs(
    encoder: GinEncoder,
    network: Params,
    head: Params,
    dataset: PpiDataset,
    indices: Tensor,
    tasks: Tensor | None = None,
) -> float:
    """Return the mean AUROC (%) of a head for the FT `tasks` (None: all) on the graphs `indices`.

    Raises DataError if no task has both labels.
    """
    labels = dataset.fine(indices) if tasks is None else dataset.fine(indices)[:, tasks]
    return 100 * float(mean_auroc(logits(head, features_of(encoder, network, dataset, indices)), labels))


@torch.no_grad()
def features_of(encoder: GinEncoder, network: Params, dataset: PpiDataset, indices: Tensor) -> Tensor:
    """Return features [n, 2 width] with BatchNorm in eval mode and without dropout.

    The graphs are encoded in chunks, so that memory for activations does not grow with n.
    """
    return in_chunks(lambda chunk: encoder(network, dataset.batch(chunk), training=False), indices, CHUNK)
