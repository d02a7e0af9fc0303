"""Functions of a user, as a module's text, and answers of tokens for them to judge."""

from dataclasses import replace
from typing import Any

import torch

from mmrl.core.contracts import RewardBatch
from tests.rewards.example import answers

OWN = """
import torch

def close(text, answer):
    return float(answer in text)

def everything(text, image, video, action, canvas, is_finished, num_tokens, pieces, step_reward, outcome, screen,
               prompt, target, seed, iteration, answer):
    seen.append(dict(locals()))
    return 0

seen = []

def scaled(image, factor=2.0):
    return factor * image.mean()

def of_group(batch):
    lengths = torch.tensor([float(len(text)) for text in batch.outputs.texts])
    return torch.stack([(lengths[batch.group == group] <= length).float().mean()
                        for length, group in zip(lengths, batch.group)])

def spoil(image, target, box):
    image.zero_()
    target["box"].append(5)
    box.append(6)
    return 1.0

def as_list(batch):
    return [len(text) for text in batch.outputs.texts]

def returns(text, value=None):
    return VALUES[text]

VALUES = {}

def whatever(batch):
    return VALUES["batch"]

def digits(batch):
    return [[float(piece.isdigit()) for piece in pieces] for pieces in batch.outputs.pieces]

def at_stops(batch):
    return [[piece == "." for piece in pieces[:-1]] + [True] for pieces in batch.outputs.pieces]

def of_sentences(batch):
    return [[0.5 * (piece == ".") for piece in pieces] for pieces in batch.outputs.pieces]

def loose(*args, **kwargs): return 0
def nothing(): return 0
async def later(text): return 0
def by_place(text, /): return 0
number = 3

class Counting:
    def __call__(self, text):
        return len(text)

counting = Counting()
"""


PIECES = (("1", "a", ".", ""), ("b",), (".", "22"))


def tokens(**changes: Any) -> RewardBatch:
    """Three answers of 4, 1 and 2 tokens."""
    batch = answers(["1a.", "b", ".22"], pieces=PIECES)
    return replace(batch, num_decisions=torch.tensor([4, 1, 2]), **changes)
