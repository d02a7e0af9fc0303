"""Writes configs/prompts/compositions_*.txt: objects with colours, counts and places, no combination in both files."""

from itertools import product
from pathlib import Path
from random import Random

OBJECTS = (
    "apple", "backpack", "banana", "bench", "bicycle", "bird", "boat", "book", "bottle", "bowl", "bus", "cake", "car",
    "carrot", "cat", "chair", "clock", "cow", "cup", "dog", "donut", "elephant", "giraffe", "guitar", "horse", "kite",
    "lamp", "laptop", "mug", "orange", "pizza", "sheep", "shoe", "sofa", "suitcase", "teapot", "train", "tree",
    "umbrella", "vase",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white")
COUNTS = ("two", "three", "four")
PLACES = ("to the left of", "to the right of", "above", "below", "in front of", "behind")
SIZES = {"train": 1000, "held_out": 64}


def plural(noun: str) -> str:
    return {"sheep": "sheep", "bus": "buses", "bench": "benches"}.get(noun, f"{noun}s")


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def everything() -> list[str]:
    """All prompts of the grammar, as many of each kind, shuffled."""
    random = Random(0)
    coloured = [f"a photo of {article(colour)} {noun}" for colour, noun in product(COLOURS, OBJECTS)]
    counted = [
        f"a photo of {count} {colour} {plural(noun)}" for count, colour, noun in product(COUNTS, COLOURS, OBJECTS)
    ]
    placed = [
        f"a photo of {article(colour)} {noun} {place} {article(other_colour)} {other}"
        for place, colour, noun, other_colour, other in product(PLACES, COLOURS, OBJECTS, COLOURS, OBJECTS)
        if noun != other
    ]
    kinds = [random.sample(prompts, 360) for prompts in (coloured, counted, placed)]
    mixed = [prompt for prompts in kinds for prompt in prompts]
    random.shuffle(mixed)
    return mixed


def main() -> None:
    folder, prompts = Path(__file__).parents[1] / "configs" / "prompts", everything()
    for name, size in SIZES.items():
        (folder / f"compositions_{name}.txt").write_text("\n".join(prompts[:size]) + "\n", encoding="utf-8")
        prompts = prompts[size:]


if __name__ == "__main__":
    main()
