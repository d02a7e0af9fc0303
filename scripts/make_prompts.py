"""Writes the prompts in configs/prompts/, no prompt in both files of a kind.

compositions_*.txt: objects with colours, counts and places, for pictures. motions_*.txt: subjects that move, with a
place and a camera, for videos.
"""

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
ACTORS = {  # who moves, and how
    ("a brown dog", "a white horse", "a black cat", "a small goat"): (
        "runs", "walks slowly", "jumps over a log", "turns its head", "lies down",
    ),
    ("a woman in a red coat", "an old man with a hat", "a boy with a yellow backpack", "a girl in a blue dress"): (
        "walks", "waves a hand", "opens an umbrella", "dances", "sits down on a bench", "rides a bicycle",
    ),
    ("a red bus", "a green tractor", "a silver car", "a freight train"): (
        "drives past", "comes to a stop", "turns left", "drives through a puddle",
    ),
    ("a paper boat", "a hot-air balloon", "a yellow kite", "a flock of birds"): (
        "drifts from left to right", "rises", "comes closer", "moves away",
    ),
}  # fmt: skip
SCENES = (
    "on a beach at sunset", "in a snowy park", "on a busy street at night", "in a field of tall grass", "in the rain",
    "beside a calm lake", "in front of a stone bridge", "on a mountain road in fog",
)  # fmt: skip
CAMERAS = ("the camera stands still", "the camera follows", "the camera moves closer", "seen from above")


def plural(noun: str) -> str:
    return {"sheep": "sheep", "bus": "buses", "bench": "benches"}.get(noun, f"{noun}s")


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def compositions() -> list[str]:
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


def motions() -> list[str]:
    """All prompts of subjects that move, shuffled."""
    prompts = [
        f"{actor} {act} {scene}, {camera}"
        for (actors, acts), scene, camera in product(ACTORS.items(), SCENES, CAMERAS)
        for actor, act in product(actors, acts)
    ]
    Random(0).shuffle(prompts)
    return prompts


def main() -> None:
    folder = Path(__file__).parents[1] / "configs" / "prompts"
    for kind, prompts in (("compositions", compositions()), ("motions", motions())):
        for name, size in SIZES.items():
            (folder / f"{kind}_{name}.txt").write_text("\n".join(prompts[:size]) + "\n", encoding="utf-8")
            prompts = prompts[size:]


if __name__ == "__main__":
    main()
