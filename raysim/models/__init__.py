"""Networks, named as in the papers' tables. Your own may be any nn.Module class that takes `shape` and `outputs`."""

from torch import nn

from raysim.models.cnn import BatchNormCNN, FiveLayerCNN, LeNet5, ReLUCNN, TanhCNN, TutorialCNN
from raysim.models.gan import DCGAN
from raysim.models.mlp import MLP
from raysim.models.network import Network, NetworkFactory
from raysim.models.resnet import DenseNet121, ResNet18, ResNet20
from raysim.registry import Registry

MODELS = Registry(
    "model",
    {
        "mlp": MLP,
        "lenet5": LeNet5,
        "tutorial_cnn": TutorialCNN,
        "tanh_cnn": TanhCNN,
        "relu_cnn": ReLUCNN,
        "bn_cnn": BatchNormCNN,
        "cnn5": FiveLayerCNN,
        "resnet18": ResNet18,
        "resnet20": ResNet20,
        "densenet121": DenseNet121,
        "dcgan": DCGAN,
    },
    injected=("shape", "outputs"),
    base=nn.Module,
)

__all__ = [
    "DCGAN",
    "MLP",
    "MODELS",
    "BatchNormCNN",
    "DenseNet121",
    "FiveLayerCNN",
    "LeNet5",
    "Network",
    "NetworkFactory",
    "ReLUCNN",
    "ResNet18",
    "ResNet20",
    "TanhCNN",
    "TutorialCNN",
]
