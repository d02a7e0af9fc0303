"""Writes the prompts in configs/prompts/, no prompt in both files of a kind.

compositions_*.txt: objects with colours, counts and places, for pictures. motions_*.txt: subjects that move, with a
place and a camera, for videos. geneval_*.jsonl: compositions of objects that detectors of COCO know, with the metadata
that the reward `geneval` reads. contrasts_*.jsonl: counts of coloured objects, each with prompts that differ in one of
these or in all, for the reward `text_norm`. texts_*.txt: things that bear a text, which stands in quotes for the
reward `ocr_text`. atoms_*.jsonl: numbers of coloured objects at a place, with a question and its answer for each thing
that is asked for, for the reward `geneval2`. questions_*.jsonl: the same with questions that depend on each other, for
the reward `question_graph`.
"""

import json
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

OBJECTS = (
    "apple", "backpack", "banana", "bench", "bicycle", "bird", "boat", "book", "bottle", "bowl", "bus", "cake", "car",
    "carrot", "cat", "chair", "clock", "cow", "cup", "dog", "donut", "elephant", "giraffe", "guitar", "horse", "kite",
    "lamp", "laptop", "mug", "orange", "pizza", "sheep", "shoe", "sofa", "suitcase", "teapot", "train", "tree",
    "umbrella", "vase",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white")
COUNTS = ("two", "three", "four")
PLACES = ("to the left of", "to the right of", "above", "below", "in front of", "behind")
NOT_IN_COCO = {"guitar", "lamp", "mug", "shoe", "sofa", "teapot", "tree"}
# the tasks that models fail at most have most prompts: the shares of Flow-GRPO's training set, arXiv 2505.05470
SHARES = {"position": 7, "counting": 5, "color_attr": 3, "colors": 1, "two_object": 1}
RELATIONS = ("left of", "right of", "above", "below")
BEARERS = (
    "a wooden sign at a crossroads", "a neon sign above a bar", "a chalkboard in a cafe", "the cover of an old book",
    "a birthday cake", "a white coffee cup", "a T-shirt on a hanger", "a poster on a brick wall",
    "a note on a refrigerator", "the side of a delivery van", "a glass bottle with a label", "a banner in a stadium",
    "a road sign in the desert", "a sticker on a laptop", "a banner behind a small aeroplane", "a stone above a gate",
)  # fmt: skip
ADJECTIVES = ("Quiet", "Golden", "Lucky", "Northern", "Hidden", "Electric", "Sweet", "Brave", "Last", "Second")
NOUNS = ("Harbor", "Garden", "Robot", "Bakery", "Summer", "River", "Chance", "Library", "Orbit", "Window")
SAYINGS = (
    "OPEN", "Room 12", "Back at 5", "No Parking", "Keep Left", "Fresh Bread", "Happy Birthday", "Wet Paint",
    "Lost and Found", "Mind the Step", "Free Wi-Fi", "Ticket Office", "Exit 47", "Since 1962", "Think Twice",
)  # fmt: skip
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


def texts() -> list[str]:
    """All prompts of things with a text on them, shuffled."""
    names = [f"{adjective} {noun}" for adjective, noun in product(ADJECTIVES, NOUNS)]
    prompts = [f'{bearer} that says "{text}"' for bearer, text in product(BEARERS, (*names, *SAYINGS))]
    Random(0).shuffle(prompts)
    return prompts


def scenes() -> list[str]:
    """Rows of GenEval's metadata with their prompts, as JSON: its tasks in the shares of Flow-GRPO's training set."""
    random = Random(0)
    nouns = [noun for noun in OBJECTS if noun not in NOT_IN_COCO]
    pairs = [(noun, other) for noun, other in product(nouns, nouns) if noun != other]

    def row(tag: str, prompt: str, include: list[dict[str, Any]], **more: Any) -> str:
        return json.dumps({"tag": tag, "include": include, **more, "prompt": f"a photo of {prompt}"})

    def one(noun: str, **more: Any) -> dict[str, Any]:
        return {"class": noun, "count": 1, **more}

    rows = {
        "position": [
            row("position", f"{article(a)} {place} {article(b)}", [one(b), one(a, position=[place, 0])])
            for place, (a, b) in product(RELATIONS, pairs)
        ],
        "counting": [
            row(
                "counting",
                f"{word}{f' {color}' if color else ''} {plural(noun)}",
                [{"class": noun, "count": number} | ({"color": color} if color else {})],
                exclude=[{"class": noun, "count": number + 1}],
            )
            for color, (number, word), noun in product(("", *COLOURS), enumerate(COUNTS, 2), nouns)
        ],
        "color_attr": [
            row(
                "color_attr",
                f"{article(color)} {a} and {article(other)} {b}",
                [one(a, color=color), one(b, color=other)],
            )
            for (a, b), color, other in product(pairs, COLOURS, COLOURS)
            if color != other
        ],
        "colors": [
            row("colors", f"{article(color)} {noun}", [one(noun, color=color)])
            for noun, color in product(nouns, COLOURS)
        ],
        "two_object": [row("two_object", f"{article(a)} and {article(b)}", [one(a), one(b)]) for a, b in pairs],
    }
    unit = 64  # prompts of a share of 1; 17 of these are a few more than are taken
    mixed = [one for task, share in SHARES.items() for one in random.sample(rows[task], share * unit)]
    random.shuffle(mixed)
    return mixed


def contrasts() -> list[str]:
    """Rows of a count, a colour and an object, with prompts of another count, colour, object, or all three."""
    random = Random(0)
    all_three = list(product(COUNTS, COLOURS, OBJECTS))
    random.shuffle(all_three)

    def other(known: tuple[str, ...], one: str) -> str:
        return random.choice([name for name in known if name != one])

    def text(count: str, colour: str, noun: str) -> str:
        return f"a photo of {count} {colour} {plural(noun)}"

    rows = []
    for count, colour, noun in all_three:
        others = other(COUNTS, count), other(COLOURS, colour), other(OBJECTS, noun)
        changed = [(others[0], colour, noun), (count, others[1], noun), (count, colour, others[2]), others]
        rows.append(json.dumps({"prompt": text(count, colour, noun), "contrasts": [text(*one) for one in changed]}))
    return rows


def atoms() -> list[str]:
    """Rows of one group of objects to three, with questions and answers about each, in the form of GenEval 2."""
    random = Random(0)
    words = ("a", *COUNTS)
    rows: dict[str, str] = {}
    while len(rows) < sum(SIZES.values()):
        nouns = random.sample(OBJECTS, random.choice((1, 2, 3)))
        parts = [(random.choice(words), random.choice(("", *COLOURS)), noun) for noun in nouns]
        place = random.choice(PLACES)
        names = [noun if count == "a" else plural(noun) for count, _, noun in parts]
        texts = [
            article(f"{colour} {name}".strip()) if count == "a" else f"{count} {colour} {name}".replace("  ", " ")
            for (count, colour, _), name in zip(parts, names, strict=True)
        ]
        questions = []
        for (count, colour, noun), name in zip(parts, names, strict=True):
            is_one = count == "a"
            questions.append([f"Is there {article(noun)}?" if is_one else f"Are there {name}?", "Yes"])
            questions.append([f"How many {plural(noun)} are there?", "one" if is_one else count])
            questions += [[f"{'Is' if is_one else 'Are'} the {name} {colour}?", "Yes"]] if colour else []
        if len(parts) > 1:
            is_one = parts[0][0] == "a"
            questions.append([f"{'Is' if is_one else 'Are'} the {names[0]} {place} the {names[1]}?", "Yes"])
        text = " and ".join([f" {place} ".join(texts[:2]), *texts[2:]])
        rows[text] = json.dumps({"prompt": f"a photo of {text}", "vqa_list": questions})
    return list(rows.values())


def questions() -> list[str]:
    """The rows of `atoms` with questions that are right where the answer is yes, and those that each depends on."""
    rows = []
    for row in map(json.loads, atoms()):
        texts: list[str] = []
        parents: list[list[int]] = []
        things: list[int] = []  # the questions whether a thing is there
        for question, answer in row["vqa_list"]:
            if question.startswith(("Is there", "Are there")):
                things.append(len(texts))
                parents.append([])
            else:
                is_place = any(f" {place} the " in question for place in PLACES)
                parents.append(things[:2] if is_place else things[-1:])
            if answer == "one":
                question = texts[-1].replace("Is there an ", "Is there a ").replace("Is there a ", "Is there just one ")
            elif answer != "Yes":
                question = question.replace("How many", f"Are there {answer}").replace(" are there?", "?")
            texts.append(question)
        rows.append(json.dumps({"prompt": row["prompt"], "questions": texts, "parents": parents}))
    return rows


def main() -> None:
    folder = Path(__file__).parents[1] / "configs" / "prompts"
    kinds = {
        "compositions_{}.txt": compositions(),
        "motions_{}.txt": motions(),
        "texts_{}.txt": texts(),
        "geneval_{}.jsonl": scenes(),
        "contrasts_{}.jsonl": contrasts(),
        "atoms_{}.jsonl": atoms(),
        "questions_{}.jsonl": questions(),
    }
    for file, prompts in kinds.items():
        for name, size in SIZES.items():
            (folder / file.format(name)).write_text("\n".join(prompts[:size]) + "\n", encoding="utf-8")
            prompts = prompts[size:]


if __name__ == "__main__":
    main()
