"""Data sets, partitions of their rows among clients, and the mapped files that hold the result."""

from raysim.data.files import LibSVM, Parquet
from raysim.data.images import ImageFolder
from raysim.data.partition import (
    IID,
    ByLabel,
    ClassesPerClient,
    ConsecutiveClasses,
    Dirichlet,
    Natural,
    Partitioner,
    QuantitySkew,
    Stride,
)
from raysim.data.quadratic import Quadratic, unpack_quadratic
from raysim.data.shards import Sample, Shards, Split, SplitRows, build
from raysim.data.standard import CIFAR10, CIFAR100, MNIST, STL10, Digits, FashionMNIST
from raysim.data.table import Source, Splits, Table
from raysim.registry import Registry

SOURCES = Registry(
    "data",
    {
        "digits": Digits,
        "mnist": MNIST,
        "fashion_mnist": FashionMNIST,
        "cifar10": CIFAR10,
        "cifar100": CIFAR100,
        "stl10": STL10,
        "image_folder": ImageFolder,
        "parquet": Parquet,
        "libsvm": LibSVM,
        "quadratic": Quadratic,
    },
    base=Source,
)

PARTITIONERS = Registry(
    "partition",
    {
        "by_label": ByLabel,
        "iid": IID,
        "stride": Stride,
        "classes_per_client": ClassesPerClient,
        "consecutive_classes": ConsecutiveClasses,
        "dirichlet": Dirichlet,
        "quantity_skew": QuantitySkew,
        "natural": Natural,
    },
    base=Partitioner,
)

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "PARTITIONERS",
    "SOURCES",
    "STL10",
    "ByLabel",
    "ClassesPerClient",
    "ConsecutiveClasses",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "ImageFolder",
    "LibSVM",
    "Natural",
    "Parquet",
    "Partitioner",
    "Quadratic",
    "QuantitySkew",
    "Sample",
    "Shards",
    "Source",
    "Split",
    "SplitRows",
    "Splits",
    "Stride",
    "Table",
    "build",
    "unpack_quadratic",
]
