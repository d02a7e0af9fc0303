"""Questions with a choice asked the other way round: what was right is wrong, and several options are right."""

import re
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_uppercase

import torch

from mmrl.core.data import Prompt
from mmrl.core.keys import generator

NEGATED = {  # the verbs behind a question word
    "did": "didn't", "does": "doesn't", "do": "don't", "is": "isn't", "are": "aren't", "was": "wasn't",
    "were": "weren't", "has": "hasn't", "have": "haven't", "had": "hadn't", "can": "can't", "could": "couldn't",
    "will": "won't", "would": "wouldn't", "should": "shouldn't",
}  # fmt: skip
# "Why didn't he run?" asks for the reason of something else, so a question for a reason or a manner cannot be negated.
_VERB = re.compile(
    r"(?P<before>(?:^|[.!?>\n])\s{0,4}(?:what|which|who|whom|whose|where|when)(?: [\w-]{1,40}){0,2}? )"
    rf"(?P<verb>{'|'.join(NEGATED)})(?P<after> )",
    re.IGNORECASE,
)
_LETTER = re.compile(r"\s{0,4}[(\[]?([A-Z])(?=[)\].: ])")  # at the beginning of an option: (A), [A], A., A:, A)


def inverted(prompt: Prompt, share: float, seed: int) -> Prompt:
    """Returns the prompt asked the other way round, by chance `share`; the prompt itself where it cannot be.

    Dang et al. 2025 (TW-GRPO), arXiv 2505.24718 (question-answer inversion): "What did he take?" becomes "What didn't
    he take?", the options that were right are wrong and the others right. Of these a random number stays, at least one,
    so that not all but one are right each time, and the options are shuffled and lettered anew. The authors invert half
    of the questions (0.5). They also invert the options of questions whose verb they do not find; such questions stay
    as they are here, and so do those for a reason or a manner, those that already have a negation, and prompts whose
    text does not hold the options of `target.options` as lines of their own, at its end or before other text.

    The chance is that of the question's text and of `seed`, wherever its row stands. `target.is_inverted` says whether
    the prompt was inverted.
    """
    random = generator(seed, "inverted", prompt.text)
    is_chosen = bool(torch.rand((), generator=random) < share)
    found = _inverse(prompt, random) if is_chosen else None
    return replace(found or prompt, target={**(found or prompt).target, "is_inverted": found is not None})


def _inverse(prompt: Prompt, random: torch.Generator) -> Prompt | None:
    options, answer = prompt.target.get("options"), prompt.target.get("answer")
    if not isinstance(options, list | tuple) or not options or not all(isinstance(one, str) for one in options):
        return None
    head, block, tail = prompt.text.partition("\n" + "\n".join(options))
    question, right = negated(head), _letters(answer, len(options))
    if not block or question is None or not right or len(right) == len(options):
        return None
    others = [number for number in range(len(options)) if number not in right]
    count = 1 + int(torch.randint(len(others), (), generator=random))
    stay = [others[number] for number in torch.randperm(len(others), generator=random)[:count].tolist()]
    rows = sorted(right) + stay
    order = [rows[number] for number in torch.randperm(len(rows), generator=random).tolist()]
    matches = [_LETTER.match(option) for option in options]
    has_letters = all(one and one[1] == letter for one, letter in zip(matches, ascii_uppercase, strict=False))
    texts = [options[row] for row in order]
    if has_letters:  # else an "A" is an article
        texts = [_lettered(text, letter) for text, letter in zip(texts, ascii_uppercase, strict=False)]
    letters = ", ".join(ascii_uppercase[place] for place, row in enumerate(order) if row not in right)
    target = {**prompt.target, "options": texts, "answer": letters}
    return replace(prompt, text="\n".join([question, *texts]) + tail, target=target)


def negated(text: str) -> str | None:
    """Returns a text whose question is negated at its verb; None where no such verb, or a negation, is found."""
    if re.search(r"n't\b|\bnot\b", text, re.IGNORECASE):
        return None
    match = _VERB.search(text)
    if match is None:
        return None
    verb = NEGATED[match["verb"].lower()]
    return text[: match.start("verb")] + (verb.upper() if match["verb"].isupper() else verb) + text[match.end("verb") :]


def _letters(answer: object, count: int) -> frozenset[int]:
    """Returns the places of the options that an answer names by letters, as `(A)`, `B` and `A, C`; empty for others."""
    given: Sequence[object] = answer if isinstance(answer, list | tuple) else [answer]
    if not all(isinstance(one, str) for one in given):
        return frozenset()
    letters = [letter for one in given for letter in re.split(r"[\s,;()\[\].]+", str(one)) if letter]
    places = frozenset(ascii_uppercase.find(letter) if len(letter) == 1 else -1 for letter in letters)
    return places if places and all(0 <= place < count for place in places) else frozenset()


def _lettered(option: str, letter: str) -> str:
    """Returns an option with another letter in front."""
    match = _LETTER.match(option)
    assert match is not None, "it has one"
    return option[: match.start(1)] + letter + option[match.end(1) :]
