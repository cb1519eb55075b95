"""Networks, named as in the papers' tables. One of your own is any nn.Module class that takes `shape` and `outputs`."""

from torch import nn

from raysim.models.cnn import LeNet5, ReLUCNN, TanhCNN, TutorialCNN
from raysim.models.mlp import MLP
from raysim.models.network import Network, NetworkFactory
from raysim.registry import Registry

MODELS = Registry(
    "model",
    {"mlp": MLP, "lenet5": LeNet5, "tutorial_cnn": TutorialCNN, "tanh_cnn": TanhCNN, "relu_cnn": ReLUCNN},
    injected=("shape", "outputs"),
    base=nn.Module,
)

__all__ = ["MLP", "MODELS", "LeNet5", "Network", "NetworkFactory", "ReLUCNN", "TanhCNN", "TutorialCNN"]
