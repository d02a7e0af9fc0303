"""The code that model cards give for vision-language models: run as it stands, it answers as mmrl does, greedily."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.data import Prompt
from mmrl.media import video
from mmrl.modalities.gui import Gui
from mmrl.modalities.language.usage import _ranges
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.video import Video
from mmrl.plans.answers import AnswerPlan
from tests import vision_twins
from tests.clips import encoded, in_file

PLAN = AnswerPlan(1, 12, temperature=0)
PICTURE = Prompt("what is <image> like?", (vision_twins.picture(60, 90, 1),))


def moved(policy: Any) -> Any:
    """The policy with other weights than its model has."""
    for tensor in policy.weights.tensors("trained").values():
        tensor.data.normal_(0.0, 0.1)
    return policy


def theirs(code: str, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> str:
    """What the code prints in the folder."""
    with patch.context() as patched:
        patched.chdir(folder)
        capture.readouterr()
        exec(compile(code, "README.md", "exec"), {})
        return capture.readouterr().out.removesuffix("\n")


@pytest.fixture
def answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str, str]]:
    """Exports a policy and gives the code of its card, its answer to a prompt, and what mmrl answers."""

    def both(policy: Any, prompt: Prompt) -> tuple[str, str, str]:
        for number, picture in enumerate(prompt.media, 1):
            name = "image.png" if len(prompt.media) == 1 else f"image_{number}.png"
            picture.load().save(tmp_path / name)
        moved(policy).export(tmp_path)
        code = policy.usage(prompt, PLAN, repr(policy.model)).code
        rollout = policy.rollout([prompt], [PLAN], vision_twins.keys(1))
        return code, theirs(code, tmp_path, monkeypatch, capsys), rollout.outputs.texts[0]

    return both


@pytest.mark.slow  # loads a model once more
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers so
@pytest.mark.parametrize("is_adapter", [False, True])
def test_the_code_of_the_card_answers_what_mmrl_answers(is_adapter: bool, answers: Any) -> None:
    lora = Lora(rank=2) if is_adapter else None
    policy = vision_twins.policy(lora=lora, max_pixels=56 * 56, template="Think. {prompt}", system_prompt="You see.")
    code, found, wanted = answers(policy, PICTURE)
    assert found == wanted != ""
    assert ("PeftModel" in code) is is_adapter
    assert "You see." in code and "Think. what is " in code


@pytest.mark.slow  # the same
@pytest.mark.parametrize(("family", "dialect"), [("qwen2_5_vl", "qwen"), ("qwen3_vl", "ui_tars")])
def test_instructions_tell_the_size_of_the_screen_at_hand(family: str, dialect: Any, answers: Any) -> None:
    policy = vision_twins.prepared(Gui, family, dialect=dialect, max_pixels=64 * 64, actions=("click", "type"))
    code, found, wanted = answers(policy, Prompt("click it", (vision_twins.picture(300, 200, 2),)))
    assert found == wanted != ""
    assert ("{WIDTH}" in code) is (family == "qwen2_5_vl")  # a unit of its own is the same for all screens
    assert "70001" not in code and "80003" not in code


@pytest.mark.slow  # the same, and decodes a video
@pytest.mark.parametrize("family", ["qwen3_vl", "internvl"])
def test_frames_of_videos_are_chosen_as_in_the_run(family: str, answers: Any, tmp_path: Path) -> None:
    path = in_file(tmp_path, encoded(20))
    policy = vision_twins.prepared(Video, family, num_frames=4)
    clip = video.StoredClip("clip", path=path)
    _, found, wanted = answers(policy, Prompt("when?", clips=(clip,)))
    assert found == wanted != ""


def test_sampling_is_told_with_the_settings_that_would_come_with_the_model() -> None:
    policy = vision_twins.policy()
    code = policy.usage(PICTURE, AnswerPlan(1, 9, temperature=0.7, top_p=0.9, stop=("</a>",)), "").code
    for setting in ("max_new_tokens=9", "do_sample=True", "temperature=0.7", "top_p=0.9", "top_k=0"):
        assert f"    {setting},\n" in code
    assert "repetition_penalty=1.0" in code and "stop_strings=['</a>']" in code


def test_tokens_in_a_row_are_told_as_a_range() -> None:
    assert _ranges([1, 3, 4, 7, 8, 9, 20]) == "[1, 3, 4, *range(7, 10), 20]"
