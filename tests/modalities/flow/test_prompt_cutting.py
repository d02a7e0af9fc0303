"""Prompts that are longer than text encoders read are told by mmrl, with their place, and not by the libraries."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import CLIPTokenizer

from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import Cut
from mmrl.core.data import Prompt
from mmrl.modalities.encoding.prompt_cutting import cuts_of, without_cut_warnings
from mmrl.modalities.tiny.clip import clip_tokenizer
from mmrl.modalities.tiny.sd3 import t5_tokenizer
from mmrl.prompts.filtering import warn_cut
from tests import diffusion_twins
from tests.modalities.conftest import MakePolicy

RED = "red circle "  # two tokens of a twin's CLIP each time


class TrajectoryRecorder(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def libraries() -> Iterator[list[str]]:
    """What diffusers and transformers say."""
    recorder, loggers = TrajectoryRecorder(), [logging.getLogger("diffusers"), logging.getLogger("transformers")]
    for logger in loggers:
        logger.addHandler(recorder)
    yield recorder.said
    for logger in loggers:
        logger.removeHandler(recorder)


@pytest.fixture(scope="module")
def clip() -> CLIPTokenizer:
    return clip_tokenizer("!")


def test_a_prompt_is_cut_where_its_encoder_stops_reading(clip: CLIPTokenizer) -> None:
    fits, long = (RED * 37 + "red").strip(), (RED * 40).strip()  # 75 tokens and two ends are 77
    assert cuts_of([(clip, 77)], [fits, f"{fits} on", long]) == [
        (),
        (Cut("CLIP", 75, 76, fits[-40:]),),
        (Cut("CLIP", 75, 80, fits[-40:]),),
    ]


def test_encoders_that_cut_alike_are_told_once_and_others_apart(clip: CLIPTokenizer) -> None:
    long = (RED * 40).strip()
    assert cuts_of([(clip, 77), (clip, 77), (t5_tokenizer(), 256)], [long, "red"]) == [
        (Cut("CLIP", 75, 80, (RED * 38)[:-8][-40:]),),
        (),
    ]
    (found,) = cuts_of([(clip, 77), (t5_tokenizer(), 5)], [long])
    assert [(cut.encoder, cut.num_read, cut.num_tokens) for cut in found] == [("CLIP", 75, 80), ("T5", 4, 80)]


@pytest.mark.parametrize("text", ["🦊" * 40, "漢字" * 30, "é" * 76])
def test_a_text_of_any_script_is_counted_by_its_tokens(clip: CLIPTokenizer, text: str) -> None:
    tokens = len(clip(text, verbose=False)["input_ids"])
    assert bool(cuts_of([(clip, 77)], [text])[0]) == (tokens > 77)


@pytest.mark.slow
def test_a_policy_says_what_each_of_its_encoders_leaves_out(
    twin_policy: MakePolicy, libraries: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    policy = twin_policy()  # whose T5 reads 8 tokens
    prompts = (Prompt("red", source="a.txt, line 1"), Prompt(RED * 40, source="a.txt, line 2"), Prompt(RED * 50))
    warn_cut(policy, prompts, "a.txt")
    policy.conditioning([prompt.text for prompt in prompts])
    (said,) = caplog.messages
    assert said == (
        "prompts: the model reads only the beginning of 2 of 3 of a.txt; the first, a.txt, line 2: "
        f"'{(RED * 40)[:60]} ...': CLIP reads 75 of its 80 tokens, up to '... {(RED * 38)[:-8][-40:]}'; "
        f"T5 reads 7 of its 80 tokens, up to '{(RED * 3).strip()} red'"
    )
    assert libraries == []


@pytest.mark.slow
def test_an_encoder_that_is_not_there_cuts_nothing(lab_policy: MakePolicy, caplog: pytest.LogCaptureFixture) -> None:
    policy = lab_policy()
    warn_cut(policy, [Prompt("red")], DatasetSettings(path="a.jsonl"))
    assert caplog.messages == []
    assert {cut.encoder for (cut,) in [policy.cuts([RED * 60])[0]]} == {"CLIP"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", diffusion_twins.KINDS)
def test_stable_diffusion_tells_and_its_libraries_do_not(kind: str, base: Path, libraries: list[str]) -> None:
    policy = diffusion_twins.policy_of(diffusion_twins.twin(kind, base))
    policy.conditioning([RED * 50])
    assert libraries == []
    assert [cut.num_read for cut in policy.cuts([RED * 50])[0]] == [75]


def test_only_the_words_about_cut_texts_are_dropped(libraries: list[str]) -> None:
    logger = logging.getLogger("transformers.tokenization_utils_base")
    with without_cut_warnings(object()):
        logger.warning("Token indices sequence length is longer than the specified maximum")
        logger.warning("something else")
    logger.warning("Token indices sequence length is longer than the specified maximum")
    assert libraries == ["something else", "Token indices sequence length is longer than the specified maximum"]
