"""scalar_head against transformers' own forward, one conversation at a time, and the published names and shapes."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import Picture
from mmrl.rewards.base.networks.value_head import last_states, linear_head
from mmrl.rewards.models.scalar_head import ScalarHead
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, Shown, random_images, random_texts, shown, to_pil


def random_answers(rng: random.Random) -> RewardBatch:
    count = 2 * GROUP
    texts = tuple(random_texts(rng, count))
    return make_batch(Outputs(texts=texts), random_texts(rng, count), media=[()] * count)


EXAMPLE = Example(random_batch=random_answers)  # no truth: a model of taste


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> ScalarHead:
    twin = ScalarHead().tiny(0, tmp_path_factory.mktemp("scalar_head"))
    twin.prepare(CPU)
    return twin


def by_transformers(twin: ScalarHead, text: str, images: list[Image.Image]) -> float:
    """The head of the last hidden state that the model with its head of words returns, for one text in its own form."""
    processor = AutoProcessor.from_pretrained(twin.model)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(twin.model).eval()
    weights = load_file(twin.head)
    inputs = processor(text=[text], images=images or None, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states[-1]
    return float(states[0, -1] @ weights["v_head.summary.weight"][0] + weights["v_head.summary.bias"][0])


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


VISION = "<|vision_start|><|image_pad|><|vision_end|>"


def mixed() -> RewardBatch:
    """Prompts of two images, one at a mark, one before the text, and none, with a system message."""
    images = to_pil(random_images(random.Random(0), 2)) + to_pil(random_images(random.Random(1), 2, side=56))
    media: list[tuple[Picture, ...]] = [(Shown(images[0]), Shown(images[2])), (Shown(images[3]),), (Shown(images[1]),)]
    texts = ["<image>and<image> differ?", "see <image> well", "what is it", "no image"]
    batch = make_batch(Outputs(texts=("yes", "no, it is a long answer", "", "of course")), texts, media=[*media, ()])
    *first, last = batch.prompts
    return replace(batch, prompts=(*first, replace(last, system="Be brief.")))


@pytest.mark.slow  # transformers' own model judges one conversation at a time
def test_scores_of_a_batch_are_those_of_transformers_one_by_one(twin: ScalarHead) -> None:
    batch = mixed()
    assert batch.outputs.texts is not None
    asked = [f"{VISION}and{VISION} differ?", f"see {VISION} well", f"{VISION}what is it", "no image"]
    texts = [turn("user", one) + turn("assistant", own) for one, own in zip(asked, batch.outputs.texts, strict=True)]
    texts[3] = turn("system", "Be brief.") + texts[3]
    expected = torch.tensor([
        by_transformers(twin, text, [picture.load() for picture in prompt.media])
        for text, prompt in zip(texts, batch.prompts, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(twin.score(batch), expected, rtol=1e-4, atol=1e-4)
    normal = replace(twin, mean=2.0, std=0.5)
    normal.prepare(CPU)
    torch.testing.assert_close(normal.score(batch), (expected - 2) / 0.5, rtol=1e-4, atol=1e-3)
    assert expected.std() > 0.1, "the scores tell answers apart"


@pytest.mark.slow
def test_made_images_are_judged_before_the_prompt_in_one_turn(twin: ScalarHead) -> None:
    images = torch.cat([random_images(random.Random(2), 3)])
    texts = ["a dog", "two cats on a table", ""]
    judge = replace(twin, of="images")
    judge.prepare(CPU)
    found = judge.score(make_batch(Outputs(images=images), texts))
    expected = [
        by_transformers(twin, turn("user", VISION + text), [image])
        for text, image in zip(texts, to_pil(images), strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert judge.needs == {"images", "model"} and twin.needs == {"texts", "model"}


@pytest.mark.slow
@in_one_test("side", ["left", "right"])
def test_padding_on_either_side_changes_no_score(side: str, twin: ScalarHead) -> None:
    batch = mixed()
    assert twin._model is not None
    expected = twin.score(batch)
    before, twin._model.processor.tokenizer.padding_side = twin._model.processor.tokenizer.padding_side, side
    torch.testing.assert_close(twin.score(batch), expected, rtol=1e-4, atol=1e-4)
    twin._model.processor.tokenizer.padding_side = before


def test_the_last_token_that_counts_is_found_by_hand() -> None:
    states = torch.arange(12.0).view(3, 4, 1)
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]])
    assert last_states(states, mask)[:, 0].tolist() == [1.0, 7.0, 11.0]


def weights_of(name: str, width: int, *, bias: bool) -> dict[str, Tensor]:
    weights = {f"{name}.weight": torch.full((1, width), 2.0)}
    return weights | ({f"{name}.bias": torch.tensor([1.0])} if bias else {})


@in_one_test(("name", "bias", "expected"), [
    # value_head.safetensors of Skywork/Skywork-VL-Reward-7B, as LLaMA-Factory's `load_valuehead_params` names them and
    # TRL's `ValueHead` shapes them: Linear(3584, 1) with a bias
    ("v_head.summary", True, 2 * 3584 + 1.0),
    ("score", False, 2 * 3584.0),  # transformers' sequence classification
    ("v_head", False, 2 * 3584.0),  # InternLM's reward models
])  # fmt: skip
def test_the_published_names_and_shapes_fit(name: str, bias: bool, expected: float) -> None:
    width = Qwen2_5_VLConfig(text_config={"hidden_size": 3584}).get_text_config().hidden_size
    layer = linear_head(Path("value_head.safetensors"), weights_of(name, width, bias=bias), width)
    assert float(layer(torch.ones(1, width))) == expected
    assert not layer.weight.requires_grad


@pytest.mark.slow
def test_what_cannot_be_loaded_is_the_users_error(tmp_path: Path, twin: ScalarHead) -> None:
    with pytest.raises(ConfigError, match="cannot load the vision-language model '/no/such"):
        replace(twin, model="/no/such").prepare(CPU)
    file = tmp_path / "head.safetensors"
    save_file({"other.weight": torch.zeros(1, 32)}, file)
    with pytest.raises(ConfigError, match=r"holds no value head: no name begins with score, v_head\.summary"):
        replace(twin, head=str(file)).prepare(CPU)
    save_file({"score.weight": torch.zeros(1, 31)}, file)
    with pytest.raises(ConfigError, match="does not hold the value head"):
        replace(twin, head=str(file)).prepare(CPU)


def test_marks_of_a_prompt_must_be_those_of_its_images() -> None:
    picture = shown(random_images(random.Random(0), 1))[0][0]
    with pytest.raises(ValueError, match="has 2 marks <image> and 1 images"):
        ScalarHead().check(Prompt("<image><image>", (picture,)))
    ScalarHead().check(Prompt("no mark", (picture, picture)))
    with pytest.raises(ValueError, match="std"):
        ScalarHead(std=0)
    with pytest.raises(ValueError, match="head must be a file"):
        ScalarHead(head="value_head.json")
