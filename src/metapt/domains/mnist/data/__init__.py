"""The files, classes and sizes of MNIST's raw data."""

from __future__ import annotations

FILES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}
SIDE = 28  # height and width of an image in pixels

CLASSES = 10

TRAIN_IMAGES = {"digits": 1300, "mnist": 60_000}  # number of training images of each source
