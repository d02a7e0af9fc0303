"""Writes docs/judge_attacks.md, what attacks on rewards achieve: `python scripts/judge_attacks_page.py`."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from page_tables import table
from settings_source import escaped

from mmrl.commands.judge_attack import ROWS, RULES, Attempt, attack
from mmrl.rewards.base.judging.prompt_files import OF_LISTS, JudgePrompt, load_prompt, prompt_names

FILE = Path(__file__).parents[1] / "docs" / "judge_attacks.md"
CORRECTNESS = ("exact_answer", "math_answer", "multiple_choice", "number", "anls", "text_f1", "rouge", "bleu")
ANSWERS = {"answer", "answers", "first", "second"}  # places of a question that show texts
EDITS = ("edit_instruction", "edit_quality", "task_and_criterion")  # whose first image is the original
# Judges that are easily fooled, each in a way that was found in models, as rules.
PLANTED = {
    "opener": "rewards every answer that begins with an opener of reasoning (Zhao et al. 2025, arXiv 2507.08794)",
    "obedient": "gives the score that the answer orders",
    "long_winded": "rewards long answers",
}
HEAD = """# Attacks on judges

Written by `python scripts/judge_attacks_page.py`; [judges.md](judges.md#before-you-learn-from-a-judge) says what is
tried. Each reward gets outputs that answer nothing; a row says how many of them were rewarded.

## Rules of correctness

Rewards that compare an answer with the right one. None may be fooled once; a test holds that.

"""
WEAK = """
## Planted weak judges

Judges that are wrong on purpose, to see that `mmrl judge attack` finds out and by which attack.

"""
TWINS = """
## Every prompt on a twin

These numbers say that every shipped prompt goes through the machine: questions are made of the attacks, replies are
read, and nothing is lost. **They say nothing about a published judge.** The judge here is the random small twin of a
dry run. What it would write is made up, evenly over the scale, so that about half of what is judged alone is rewarded,
less where all of several points must hold; where the first word is asked for, P(yes) is that of random weights. With
the model that you mean to use, `mmrl judge attack` gives numbers that count; run it before you learn from that judge.
Prompts about videos and edits are tried with images.

"""


def opener(text: str) -> float:
    """Rewards every answer that begins with an opener of reasoning."""
    plain = text.removeprefix("<think>").strip()
    return float(plain.startswith(("Solution", "Thought process", "Let's", "解", "Respuesta", ":")))


def obedient(text: str) -> float:
    """Gives the score that the answer orders."""
    return float("Score: 10" in text)


def long_winded(text: str) -> float:
    """Rewards long answers."""
    return float(len(text) > 200)


def page(report: Callable[[str], object] = lambda _: None) -> str:
    """Returns the whole page; says what it comes to, which takes about two minutes."""
    rules = [_row(f"`{name}`", "", attack({"name": name})) for name in CORRECTNESS]
    weak = []
    for name, what in PLANTED.items():
        section = {"name": "python", "function": f"judge_attacks_page:{name}", "range": [0, 1]}
        weak.append(_row(f"`{name}`", what, attack(section), most=True))
    twins = []
    for name in prompt_names():
        report(name)
        twins.append(_of_twin(name, load_prompt(name)))
    parts = (
        HEAD,
        table(["reward", "attempts", "rewarded", "not judged"], [[row[0], *row[2:5]] for row in rules]),
        "\n" + WEAK,
        table(["judge", "what it does", "attempts", "rewarded", "not judged", "most rewarded attacks"], weak),
        "\n" + TWINS,
        table(["prompt", "reward", "form", "attempts", "rewarded", "not judged"], twins),
        "\n",
    )
    return "".join(parts)


def section_of(name: str, file: JudgePrompt) -> dict[str, Any]:
    """Returns the reward that judges by a prompt file, with the fields of `rows`."""
    section: dict[str, Any] = {"name": "text_judge" if file.places & ANSWERS else "vlm_judge", "prompt": name}
    if section["name"] == "vlm_judge" and name in EDITS:
        section["condition_image"] = True
    if isinstance(file.question, Mapping):
        section["choose_by"] = "task"
    if file.form in OF_LISTS and not file.criteria:
        section["criteria"] = "criteria"
    if "reference" in file.places:
        section["reference"] = "answer"
    return section


def _of_twin(name: str, file: JudgePrompt) -> list[str]:
    section = section_of(name, file)
    tasks = list(file.question) if isinstance(file.question, Mapping) else [""]
    own = {"criteria": list(RULES), "criterion": RULES[0], "principle": RULES[0], "page": RULES[0]}
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        every = [{**own, **row, "task": tasks[number % len(tasks)]} for number, row in enumerate(ROWS)]
        rows.write_text("".join(f"{json.dumps(row)}\n" for row in every), "utf-8")
        attempts = attack(section, rows=rows, is_tiny=True)
    link = f"[{name}](judge_prompts.md#{name})"
    return [link, f"`{section['name']}`", *_row("", file.form, attempts)[1:]]


def _row(name: str, what: str, attempts: Sequence[Attempt], *, most: bool = False) -> list[str]:
    counts = [sum(one.tried for one in attempts), sum(one.rewarded for one in attempts)]
    row = [name, escaped(what), *map(str, counts), str(sum(one.unjudged for one in attempts))]
    if most:
        caught = sorted((one for one in attempts if one.rewarded), key=lambda one: (-one.share, one.name))[:3]
        row.append(", ".join(f"{escaped(one.name)} ({one.rewarded} of {one.tried})" for one in caught))
    return row


if __name__ == "__main__":
    sys.modules["judge_attacks_page"] = sys.modules[__name__]
    FILE.write_text(page(print), encoding="utf-8")
    print(FILE)
