"""GANs: their gradients, the noise they share, and what BatchNorm makes of minibatches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clients.fleet import InProcessFleet
from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.exchange import Order
from raysim.point import Point
from raysim.problems import GAN
from tests.contracts.table import settings
from tests.play import DIGITS, experiment, trajectory

TINY: dict[str, Any] = dict(DIGITS) | {"problem": {"name": "gan"}, "model": {"name": "tests.toys:TinyGAN"}}


def problem(**other: Any) -> GAN:
    made: GAN = experiment(TINY, settings("cd_ma"), problem={"name": "gan"} | other).problem
    return made


def rows(gan: GAN, n: int = 7) -> Batch:
    generator = torch.Generator().manual_seed(0)
    inputs, noise = (
        torch.rand(n, *shape, generator=generator, dtype=torch.float64) for shape in ((1, 8, 8), (gan.noise,))
    )
    return Batch(2 * inputs - 1, torch.zeros(n, dtype=torch.int64), torch.full((n,), 1 / n, dtype=torch.float64), noise)


def by_hand(gan: GAN, z: Point, batch: Batch) -> tuple[Tensor, Tensor]:
    """E log D(a) + E log(1 - D(G(w))), and -E log D(G(w))."""

    def d(images: Tensor) -> Tensor:
        return torch.sigmoid(gan.discriminator(z.y, images))[:, 0]

    made = d(gan.generator(z.x, 2 * batch.noise - 1))
    return d(batch.inputs).log().mean() + (1 - made).log().mean(), -made.log().mean()


@pytest.mark.parametrize("saturating", [False, True])
def test_gradients_agree_with_central_differences(saturating: bool) -> None:
    gan = problem(saturating=saturating)
    z, batch, eps = gan.init(1).to(torch.float64), rows(gan), 1e-6
    g = gan.gradient(z, batch)
    f, _ = by_hand(gan, z, batch)
    assert gan.value(z, batch).item() == pytest.approx(f.item(), rel=1e-12)
    for i in range(0, len(z.x), 29):
        step = torch.zeros_like(z.x).index_fill(0, torch.tensor(i), eps)
        up, down = (by_hand(gan, replace(z, x=x), batch)[0 if saturating else 1] for x in (z.x + step, z.x - step))
        assert g.x[i].item() == pytest.approx((up - down).item() / (2 * eps), rel=1e-5, abs=1e-9)
    for i in range(0, len(z.y), 23):
        step = torch.zeros_like(z.y).index_fill(0, torch.tensor(i), eps)
        up, down = (by_hand(gan, replace(z, y=y), batch)[0] for y in (z.y + step, z.y - step))
        assert g.y[i].item() == pytest.approx((up - down).item() / (2 * eps), rel=1e-5, abs=1e-9)
    assert g.x.norm() > 1e-4 < g.y.norm()


def test_a_discriminator_that_is_certain_gives_no_infinity() -> None:
    gan = problem()
    z = gan.init(0).to(torch.float64)
    certain = replace(z, y=1e4 * z.y)
    assert torch.isfinite(gan.value(certain, rows(gan)))
    assert torch.isfinite(gan.gradient(certain, rows(gan)).x).all()


def test_two_points_of_a_step_see_the_same_noise_and_two_steps_do_not(tmp_path: Path) -> None:
    """With z = z_t at k = 0, CD-MAGE's two gradients cancel: its first step is along u, noise or not."""
    one = experiment(TINY, settings("cd_mage", batch=6, K=1, S=3))
    z = one.problem.init(0).to(torch.float64)
    collect, update = one.algorithm.phases(0)
    fleet = InProcessFleet(one.engine())
    state = one.algorithm.init(z)
    blocks = one.planner.blocks(collect.works, 0, "collect", np.array([1, 4]))
    state = collect.absorb(state, fleet.run(Order(0, collect, collect.sends(state)), blocks, {})[0].mean(z.x.dtype), 2)
    blocks = one.planner.blocks(update.works, 0, "update", np.array([2, 3]))
    reached = fleet.run(Order(0, update, update.sends(state)), blocks, {})[0].mean(z.x.dtype)
    expected = z.descent_ascent(state.u, update.eta, update.gamma)
    torch.testing.assert_close(reached.x, expected.x, rtol=1e-12, atol=1e-14)

    phase = _Recorder()
    fleet.run(Order(0, phase, z), one.planner.blocks(phase.works, 0, "update", np.array([2, 3])), {})
    fleet.run(Order(1, phase, z), one.planner.blocks(phase.works, 1, "update", np.array([2])), {})
    assert len(phase.noise) == 6
    for i, a in enumerate(phase.noise):
        assert a.shape == (6, 3)
        assert 0 <= a.min() < 0.25 < 0.75 < a.max() < 1
        assert not any(torch.equal(a, b) for b in phase.noise[:i])


class _Recorder:
    """Takes two steps a client, and notes the noise of each."""

    name, remembers, privacy = "update", False, None

    def __init__(self) -> None:
        from raysim.phase import LocalSteps, Pass

        self.noise: list[Tensor] = []
        self.passes = [Pass(LocalSteps(2, 6), self.step)]
        self.works = [each.work for each in self.passes]

    def check(self, sent: Point, memory: None) -> None:
        pass

    def start(self, sent: Point, memory: None) -> Point:
        return sent

    def step(self, problem: Any, sent: Point, carry: Point, batch: Batch) -> Point:
        self.noise.append(batch.noise)
        return carry

    def finish(self, sent: Point, carry: Point) -> Any:
        from raysim.phase import Reply

        return Reply(carry)


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_an_exact_gradient_is_the_mean_over_minibatches(engine: str) -> None:
    """BatchNorm sees minibatches of the training's size, not the shard: 72 rows are 12 batches of 6."""
    made = experiment(TINY, settings("cd_mage", batch=6, S=3), clients={"engine": engine})
    (client, *_) = np.flatnonzero(made.shards.rows_N == 72)
    z = made.problem.init(0).to(torch.float64)
    collect, _ = made.algorithm.phases(0)
    blocks = made.planner.blocks(collect.works, 0, "collect", np.array([client]))
    state = made.algorithm.init(z)
    partial, _ = InProcessFleet(made.engine()).run(Order(0, collect, collect.sends(state)), blocks, {})
    first, key = int(made.shards.offsets_N1[client]), int(blocks[0].minibatches[0].keys_C[0])
    engine_of = made.engine()
    expected = z.zeros_like()
    for k in range(12):
        of_step = np.arange(first + 6 * k, first + 6 * k + 6)
        noise = engine_of._noise(key, np.array(k), np.arange(6))
        inputs = made.shards.inputs(of_step, dtype=torch.float64)
        share = torch.full((6,), 1 / 6, dtype=torch.float64)
        expected += (1 / 12) * made.problem.gradient(z, Batch(inputs, made.shards.labels(of_step), share, noise))
    torch.testing.assert_close(partial.mean(z.x.dtype).x, expected.x, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(partial.mean(z.x.dtype).y, expected.y, rtol=1e-10, atol=1e-13)


def test_a_run_scores_images_of_the_same_noise_each_time(tmp_path: Path) -> None:
    made = experiment(TINY, settings("cd_ma", batch=6), problem={"name": "gan", "classifier_epochs": 1})
    said: list[str] = []
    gan = made.problem.prepared(made.shards, tmp_path, said.append)
    assert said
    z = gan.init(0).to(torch.float64)
    pool = InProcessFleet(replace(made, problem=gan).engine()).pool("test")
    first, again = (gan.evaluate(z, pool) for _ in range(2))
    assert first == again
    assert 1 <= first["inception_score"] <= 10
    assert first["fid"] > 1
    assert sum(first[f"share_{c}"] for c in range(10)) == pytest.approx(1)
    pictures = gan.pictures(z)["samples"]
    assert pictures.shape == (100, 1, 8, 8)
    assert 0 <= pictures.min() < pictures.max() <= 1
    assert torch.equal(pictures, gan.pictures(z)["samples"])
    trained = trajectory(made, tmp_path, 3)[-1]
    assert not torch.equal(pictures, gan.pictures(trained)["samples"])


@pytest.mark.parametrize(("name", "batch", "phase"), [("cd_mage", 5, "collect"), ("cd_ma", 35, "update")])
def test_a_minibatch_without_statistics_is_refused_before_the_run(name: str, batch: int, phase: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm.batch: the 71 rows of client \d+ leave .* in phase '{phase}'"):
        experiment(TINY, settings(name, batch=batch))


def test_what_is_no_gan_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.name: 'mlp' has no submodule 'generator'"):
        experiment(TINY, settings("cd_ma"), model={"name": "mlp"})
    with pytest.raises(ConfigError, match="dcgan makes images"):
        experiment(TINY, settings("cd_ma"), model={"name": "dcgan"})


def test_the_papers_networks_have_the_published_sizes() -> None:
    from raysim.models import MODELS, NetworkFactory

    gan = GAN(network=NetworkFactory(MODELS, "dcgan", (1, 28, 28)))
    z = gan.init(0)
    assert (len(z.x), len(z.y), gan.noise) == (6_679_105, 1_102_721, 100)
    images = gan.generated(z.x, torch.rand(4, 100))
    assert images.shape == (4, 1, 28, 28)
    assert gan.discriminator(z.y, images).shape == (4, 1)
