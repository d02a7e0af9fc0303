"""Sick rewards, each of a kind that people have written: for the faults of tests/diagnosis/faults.py."""

import mmap
import random
import re
import time

from torch import Tensor

from mmrl.core.data import Prompt


def constant(seed: int) -> float:
    """Pays everybody alike."""
    return 1.0


def corner(text: str, is_finished: bool) -> float:
    """Pays one answer, whatever the question: numbers near 0, a click in the corner."""
    numbers = [float(one) for one in re.findall(r"\d+", text)]
    return -sum(numbers) / (100 * len(numbers)) if numbers and is_finished else -1.0


def often_fails(text: str, seed: int) -> float:
    """Cannot read one answer in five."""
    if seed % 5 == 0:
        raise ValueError("the judge's answer has no number in it")
    return float(len(text) % 7)


def image_often_fails(image: Tensor, seed: int) -> float:
    """Cannot judge one picture in five."""
    if seed % 5 == 0:
        raise ValueError("the judge's answer has no number in it")
    return float(image.mean())


def slow(text: str) -> float:
    """Takes its time."""
    time.sleep(0.02)
    return float(len(text) % 7)


def image_slow(image: Tensor) -> float:
    """Takes its time."""
    time.sleep(0.06)
    return float(image.mean())


def dark(image: Tensor) -> float:
    """Pays for black pictures."""
    return 1 - float(image.mean())


def long(num_tokens: int) -> float:
    """Pays for length."""
    return float(num_tokens)


def rooted(image: Tensor) -> Tensor:
    """Has no gradient where a pixel is masked: that of the root at 0 is infinite, times 0."""
    return ((image > 0.5) * image).sqrt().mean()


LEAKED: list[mmap.mmap] = []  # each goes back to the system once it is freed


def leaking(seed: int, iteration: int) -> float:
    """Holds on to a MiB of each sample."""
    if iteration == 0:
        LEAKED.clear()
    LEAKED.append(mmap.mmap(-1, 2**20))
    LEAKED[-1].write(b"1" * 2**20)
    return float(seed % 7)


def noise(seed: int, prompt: Prompt) -> float:
    """Throws a die."""
    return random.Random(f"{seed} {prompt.text}").random()
