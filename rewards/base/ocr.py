"""Text in images: OCR, and how the text read is compared with the text that should stand there."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.parsing.answers import shown

from .references import words

Read = Callable[[Tensor], Sequence[str]]  # an image [H, W, 3] uint8 RGB -> its lines of text, from top to bottom

MAX_LETTERS = 1_000  # of a text that should stand in an image
MAX_READ = 4_000  # letters that were read in one image; more fit into none
MAX_LINES = 8  # neighbouring lines that may be one text
_QUOTED = re.compile(r'"([^"]*+)"|\u201c([^\u201c\u201d]*+)\u201d')
_GONE = "\0"  # a letter that served another text


def load_reader(min_confidence: float, detector_side: int) -> Read:
    """Returns RapidOCR with the models of its own package, on the CPU with as many threads as torch has.

    Raises ConfigError where a package is missing.
    """
    for package in ("rapidocr", "onnxruntime"):
        if find_spec(package) is None:
            raise ConfigError(f"ocr_text needs the package {package}: install the extra, `pip install 'mmrl[ocr]'`")
    from rapidocr import RapidOCR

    threads = "EngineConfig.onnxruntime.{}_op_num_threads"
    engine = RapidOCR(
        params={
            "Global.log_level": "error",  # it warns of every image without text
            "Global.use_cls": False,  # text stands upright, as flow_grpo sets PaddleOCR
            "Global.text_score": min_confidence,
            "Det.limit_side_len": detector_side,
            threads.format("intra"): torch.get_num_threads(),
            threads.format("inter"): 1,
        }
    )

    def read(image: Tensor) -> Sequence[str]:
        result: Any = engine(image.flip(-1).contiguous().numpy())  # it takes BGR, as OpenCV has it
        return tuple(result.txts or ())

    return read


def wanted_texts(prompt: Prompt) -> list[str]:
    """Returns the texts that should stand in the image: `target.text`, else the parts of the prompt in double quotes.

    Raises ValueError where there is no such text, or one has no letters, or too many: nothing could be judged by it.
    """
    given = prompt.target.get("text")
    if given is None:
        if prompt.text.count('"') % 2:
            raise ValueError(f"a quotation mark is left over in {shown(prompt.text)}: say what to read in target.text")
        texts = [straight or curly for straight, curly in _QUOTED.findall(prompt.text)]
        name = "a text in double quotes in the prompt, or target.text"
    else:
        texts, name = [given] if isinstance(given, str) else given, "target.text"
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"target.text must be a text or a list of texts, got {given!r} for {shown(prompt.text)}")
    if too_long := [text for text in texts if len(text) > MAX_LETTERS]:
        raise ValueError(f"a text in an image may have {MAX_LETTERS} letters, got {len(too_long[0])}")
    if not texts or not all(map(letters, texts)):
        raise ValueError(f"needs {name}, with letters in it, got {str(texts)[:80]} for {shown(prompt.text)}")
    return list(texts)


def letters(text: str) -> str:
    """Returns the compared letters of a text: without white space and capitals, double width as plain ones (NFKC)."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().replace(_GONE, "").split())


def distance_score(lines: Sequence[str], texts: Sequence[str]) -> float:
    """Returns the mean over the texts of 1 - min(edit distance, length) / length, in [0, 1], of their `letters`.

    A text that stands whole in what was read has distance 0. Otherwise one text alone is compared with all that was
    read, as flow_grpo has it; of several, each with the run of at most MAX_LINES neighbouring lines that is nearest.
    What served one text serves no other. Whole ones come first, then the longest.
    """
    read = [line for line in map(letters, lines) if line]
    ends = [0]
    for line in read:
        ends.append(min(ends[-1] + len(line), MAX_READ))
    whole = "".join(read)[:MAX_READ]
    missing, score = [], 0.0
    for text in sorted(map(letters, texts), key=len, reverse=True):
        start = whole.find(text)
        if start < 0:
            missing.append(text)
            continue
        score += 1
        whole = _without(whole, start, start + len(text))
    is_alone = len(texts) == 1
    for text in missing:
        distance, start, end = _nearest(whole, [0, ends[-1]] if is_alone else ends, text)
        score += 1 - distance / len(text)
        whole = _without(whole, start, end)
    return score / len(texts)


def recall_score(lines: Sequence[str], texts: Sequence[str]) -> float:
    """Returns the share of the words of all texts that were read, each as often as it should be there, in [0, 1].

    Raises ValueError where the texts have no words.
    """
    wanted = Counter(word for text in texts for word in _words(text))
    if not wanted:
        raise ValueError(f"recall needs texts with words, got {list(texts)!r}")
    read = Counter(_words(" ".join(lines)[:MAX_READ]))
    return (wanted & read).total() / wanted.total()


def _nearest(whole: str, ends: Sequence[int], text: str) -> tuple[int, int, int]:
    """Returns the smallest distance of a text, at most its length, to a run of lines, and the run's start and end."""
    best = (len(text), 0, 0)  # nothing was read
    for number, start in enumerate(ends[:-1]):
        for end in ends[number + 1 : number + 1 + MAX_LINES]:
            run = whole[start:end].replace(_GONE, "")
            if len(run) >= 2 * len(text):
                break  # no nearer than nothing
            best = min(best, (Levenshtein.distance(text, run), start, end), key=lambda candidate: candidate[0])
    return best


def _without(whole: str, start: int, end: int) -> str:
    return whole[:start] + _GONE * (end - start) + whole[end:]


def _words(text: str) -> list[str]:
    return words(unicodedata.normalize("NFKC", text))
