"""The plain form in which the VQA evaluation compares answers."""

import re

_NUMBERS = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
} | {"none": "0"}
_ARTICLES = frozenset({"a", "an", "the"})
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_DIGIT_COMMA = re.compile(r"[0-9],[0-9]")
_PERIOD = re.compile(r"\.(?![0-9])")

# One apostrophe of each may be left out. Those of "I" and words that are others without it (we'll, she's) are not
# meant.
_CONTRACTIONS = (
    "ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't "
    "haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't "
    "mightn't've must've mustn't needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've "
    "shouldn't shouldn't've somebody'd somebody'd've somebody'll somebody's someone'd someone'd've "
    "someone'll someone's something'd something'd've something'll that's there'd there'd've there're "
    "there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're "
    "what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're "
    "why's won't would've wouldn't wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're "
    "you've"
)
_WITH_APOSTROPHES = {
    word[:place] + word[place + 1 :]: word
    for word in _CONTRACTIONS.split()
    for place, letter in enumerate(word)
    if letter == "'"
}


def vqa_plain(text: str) -> str:
    """A text as the official evaluation of VQA v2 compares it.

    Punctuation becomes a space, or nothing where the text has a space beside such a mark, or a comma between digits;
    periods go where no digit follows. Then small letters, number words up to ten as digits, no articles, contractions
    with their apostrophe. (The official pattern for periods is meant to look at the digit before it too, but does not,
    and stops after 32; here it does not stop.)
    """
    spaced = text.replace("\n", " ").replace("\t", " ").strip()
    plain, has_comma = spaced, _DIGIT_COMMA.search(spaced) is not None
    for mark in _PUNCTUATION:
        is_dropped = has_comma or f"{mark} " in spaced or f" {mark}" in spaced
        plain = plain.replace(mark, "" if is_dropped else " ")
    words = (_NUMBERS.get(word, word) for word in _PERIOD.sub("", plain).lower().split())
    return " ".join(_WITH_APOSTROPHES.get(word, word) for word in words if word not in _ARTICLES)
