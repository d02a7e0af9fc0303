"""Rewards and worlds in threads of this process against actors of a Ray cluster on this machine.

    PYTHONPATH=. python benchmarks/ray_pool.py --calls 20

`waiting`: a reward that sleeps in each batch of 4 images, as one that waits for a judge. `computing`: one that keeps a
core busy. Both have 8 batches a call, judged by 1, 2 and 4 copies. `worlds`: steps of four corridors that sleep in each
step. `empty`: the same with no sleep, which is what a call costs. The scores of a call must be those of threads.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from _common import emit
from torch import Tensor

from mmrl.core.actors import ActorSettings
from mmrl.core.contracts import Environment, Placement, Prepared, Reward, RewardBatch
from mmrl.core.data import Observation, Outputs, Prompt
from mmrl.modalities.language.environment_workers import World
from mmrl.modalities.language.placed_worlds import PlacedEnvironment, wait_for
from mmrl.parsing.actions.action import Action
from mmrl.scoring.calls import call_reward
from mmrl.scoring.placed_rewards import PlacedReward
from tests.ray_worlds import Brightness, SlowCorridor
from tests.rewards.example import make_batch
from tests.toy_worlds import Corridor

SETTINGS = ActorSettings(cpus=0.1)


@dataclass
class Quick(Brightness):
    """`Brightness` that writes no files: it sleeps, or multiplies matrices on the way."""

    products: int = 0

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None and self._weight is not None
        time.sleep(self.seconds)
        square = torch.ones(256, 256)
        for _ in range(self.products):
            square = square @ square / 256
        return torch.sigmoid(batch.outputs.images.flatten(1) @ self._weight / 20)


class QuickCorridor(SlowCorridor):
    """`SlowCorridor` that writes no files."""

    def step(self, action: Action) -> Observation:
        time.sleep(self.seconds)
        return Corridor.step(self, action)


def scored(reward: Reward, batch: RewardBatch, calls: int) -> tuple[float, Tensor]:
    """Returns the samples that are judged in a second, and the scores."""
    assert isinstance(reward, Prepared)
    reward.prepare(Placement(torch.device("cpu"), torch.float32))
    values = call_reward("reward", reward, batch).values
    began = time.perf_counter()
    for _ in range(calls):
        values = call_reward("reward", reward, batch).values
    return calls * len(batch) / (time.perf_counter() - began), values


def stepped(environment: Environment, steps: int) -> float:
    """Returns the steps that four worlds make in a second."""
    worlds = [World(environment, 300.0) for _ in range(4)]
    for world in worlds:
        if isinstance(world.environment, PlacedEnvironment):
            world.environment.start()
    wait_for(worlds)
    click = Action("click", point=(10.0, 20.0))

    def all_do(call: Callable[[Environment], object]) -> None:
        for world in worlds:
            world.begin(call)
        for world in worlds:
            world.finish()

    all_do(lambda one: one.reset(Prompt("go"), 0))
    began = time.perf_counter()
    for _ in range(steps):
        all_do(lambda one: (one.step(click), one.state_key()))
    seconds = time.perf_counter() - began
    for world in worlds:
        world.environment.close()
    return 4 * steps / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = make_batch(Outputs(images=images), ["x"] * 32)
    kinds = {"waiting": Quick("", 0.05), "computing": Quick("", 0.0, 100), "empty": Quick("", 0.0)}
    for name, reward in kinds.items():
        rate, values = scored(reward, batch, given.calls)
        rates = {"threads": round(rate, 1)}
        for copies in (1, 2, 4):
            rate, found = scored(PlacedReward(reward, SETTINGS, copies), batch, given.calls)
            assert torch.equal(found, values), "the scores of threads"
            rates[f"ray, {copies}"] = round(rate, 1)
        emit("ray_pool", kind=name, samples_per_second=rates)
    for name, seconds in (("worlds", 0.05), ("worlds, empty", 0.0)):
        make = partial(QuickCorridor, seconds=seconds)
        threads, actors = stepped(make(), given.calls), stepped(PlacedEnvironment(make(), SETTINGS), given.calls)
        emit("ray_pool", kind=name, steps_per_second={"threads": round(threads, 1), "ray": round(actors, 1)})


if __name__ == "__main__":
    main()
