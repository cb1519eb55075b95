"""Networks: published sizes, and a flat vector that is the module's own weights."""

from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from raysim.errors import ConfigError
from raysim.models import MODELS, LeNet5, NetworkFactory
from raysim.registry import Registry


def factory(name: str, shape: tuple[int, ...], **settings: object) -> NetworkFactory:
    return NetworkFactory(MODELS, name, shape, settings)


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "floats"),
    [
        ("lenet5", (1, 28, 28), 10, 44_426),
        ("tutorial_cnn", (3, 32, 32), 10, 122_570),
        ("tanh_cnn", (1, 28, 28), 10, 26_620),
        ("tanh_cnn", (1, 28, 28), 1, 25_711),
        ("relu_cnn", (3, 32, 32), 10, 581_866),
        ("relu_cnn", (3, 32, 32), 1, 581_281),
        ("mlp", (1, 28, 28), 10, 199_210),
        ("resnet18", (3, 64, 64), 10, 11_181_642),
        ("resnet20", (3, 32, 32), 10, 269_722),
        ("resnet20", (3, 32, 32), 1, 269_137),
        ("densenet121", (3, 64, 64), 1, 6_954_881),
        ("bn_cnn", (1, 28, 28), 1, 1_474_249),
        ("cnn5", (1, 28, 28), 10, 1_248_548 + 10_250),
    ],
)
def test_published_number_of_weights(name: str, shape: tuple[int, ...], outputs: int, floats: int) -> None:
    assert factory(name, shape)(outputs).size == floats


def test_the_extractor_of_fedrecos_cnn_has_the_published_number_of_weights() -> None:
    for shape, channels, floats in (((1, 28, 28), [4, 12], 1_248_548), ((3, 32, 32), [64, 64], 2_796_352)):
        network = factory("cnn5", shape, channels=channels)
        assert network(10, "extractor").size == floats
        assert network(10).size == floats + network(10, "head").size


@pytest.mark.parametrize("name", ["lenet5", "tutorial_cnn", "mlp", "cnn5"])
def test_the_flat_function_is_the_module(name: str) -> None:
    network = factory(name, (1, 28, 28))(3)
    w = network.init(5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = MODELS.build(name, {}, shape=(1, 28, 28), outputs=3)
    inputs = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(w, inputs), module(inputs), rtol=0, atol=0)
    for parameter, piece in zip(module.parameters(), network.unflatten(w).values(), strict=True):
        assert torch.equal(parameter, piece)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    network = factory("lenet5", (1, 28, 28))(10)
    torch.manual_seed(1)
    first = network.init(0)
    torch.manual_seed(2)
    assert torch.equal(network.init(0), first)
    assert not torch.equal(network.init(1), first)


def test_final_relu_leaves_no_negative_output() -> None:
    inputs = torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    plain, relu = (factory("lenet5", (1, 28, 28), final_relu=f)(10) for f in (False, True))
    w = plain.init(0)
    assert plain(w, inputs).min() < 0
    torch.testing.assert_close(relu(w, inputs), plain(w, inputs).clamp(min=0))


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (784,)), ("lenet5", (1, 8, 8)), ("tutorial_cnn", (3, 8, 8))])
def test_inputs_a_network_cannot_take_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^model.name: "):
        factory(name, shape)(10).init(0)


class WithBatchNorm(nn.Sequential):
    def __init__(self, shape: tuple[int, ...], outputs: int, track: bool = True) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(5, track_running_stats=track), nn.Linear(5, outputs))


class WithDropout(nn.Sequential):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(nn.Linear(5, 4), nn.Dropout(), nn.Linear(4, outputs))


OWN = Registry("model", {"bn": WithBatchNorm, "drop": WithDropout}, injected=("shape", "outputs"))


@pytest.mark.parametrize(("name", "word"), [("bn", "running_mean"), ("drop", "dropout")])
def test_modules_that_would_carry_something_hidden_are_refused(name: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        NetworkFactory(OWN, name, (5,))(2).init(0)


def test_batch_statistics_without_running_averages_are_welcome() -> None:
    network = NetworkFactory(OWN, "bn", (5,), {"track": False})(2)
    assert network(network.init(0), torch.rand(6, 5)).shape == (6, 2)


def test_a_class_of_ones_own_by_its_path() -> None:
    network = NetworkFactory(MODELS, "raysim.models.cnn:LeNet5", (1, 28, 28))(10)
    assert isinstance(network.module, LeNet5)


def test_resnet18_begins_with_the_weights_of_a_file_but_for_its_last_layer(tmp_path: Path) -> None:
    pretrained = torchvision.models.resnet18().state_dict()
    torch.save(pretrained, tmp_path / "resnet18.pth")
    network = factory("resnet18", (3, 32, 32), weights=str(tmp_path / "resnet18.pth"))(4)
    mine = network.unflatten(network.init(0))
    assert torch.equal(mine["net.layer4.1.bn2.weight"], pretrained["layer4.1.bn2.weight"])
    assert torch.equal(mine["net.conv1.weight"], pretrained["conv1.weight"])
    assert mine["net.fc.weight"].shape == (4, 512)
    assert torch.isfinite(network(network.init(0), torch.rand(2, 3, 32, 32))).all()


@pytest.mark.parametrize("made", ["nothing", "rubbish", "another network"])
def test_weights_that_do_not_fit_are_refused(made: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    if made == "rubbish":
        path.write_bytes(b"PK\x03\x04 not a checkpoint")
    elif made == "another network":
        torch.save({"conv1.weight": torch.ones(3)}, path)
    with pytest.raises(ConfigError, match=rf"^model.weights: {path} does not fit"):
        factory("resnet18", (3, 32, 32), weights=str(path))(4).init(0)
