"""A sentence with more and more of its words replaced: for the tests of rewards that compare sentences."""

import random

from mmrl.core.contracts import RewardBatch
from tests.rewards.example import Example, answers

TRUTH = "the quick brown fox jumps over the lazy dog"
TARGET = {"answer": TRUTH}


def random_batch(given: random.Random) -> RewardBatch:
    texts = []
    for row in range(8):
        words = [given.choice(["cat", "sun"]) if given.random() < row / 7 else word for word in TRUTH.split()]
        texts.append(f"<answer>{' '.join(words)}</answer>")
    return answers(texts, TARGET)


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers([f"<think>so</think><answer>{TRUTH}</answer>"] * 4, TARGET)
)
