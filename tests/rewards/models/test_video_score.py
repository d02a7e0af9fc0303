"""video_score against Mantis' formula on transformers' own Idefics2, one video at a time, and the published names."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoProcessor, Idefics2Config, Idefics2Model

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.base.networks.video_score import network_class
from mmrl.rewards.models.video_score import DIMENSIONS, VideoScore, sampled_frames
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_images, random_texts, to_pil


def random_videos(rng: random.Random) -> RewardBatch:
    frames = torch.stack([random_images(rng, 3) for _ in range(8)])
    return make_batch(Outputs(videos=frames), random_texts(rng, 8))


EXAMPLE = Example(random_batch=random_videos)  # no truth: a model of taste


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> VideoScore:
    twin = VideoScore().tiny(0, tmp_path_factory.mktemp("video_score"))
    twin.prepare(CPU)
    return twin


def by_transformers(twin: VideoScore, video: Tensor, text: str) -> Tensor:
    """The five numbers of a video [F, 3, H, W]: a linear layer on the last token's state, nothing padded."""
    weights = load_file(Path(twin.model) / "model.safetensors")
    model = Idefics2Model(AutoConfig.from_pretrained(twin.model)).eval()
    model.load_state_dict({
        name.removeprefix("model."): value for name, value in weights.items() if name.startswith("model.")
    })  # fmt: skip
    processor = AutoProcessor.from_pretrained(twin.model)
    question = Path(twin.question).read_text().replace("{text_prompt}", text) + "<image> " * len(video)
    inputs = processor(text=question, images=to_pil(video), return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    numbers: Tensor = weights["score.weight"] @ states[0, -1] + weights["score.bias"]
    return numbers


@pytest.mark.slow  # two networks, of which transformers' own judges one video at a time
def test_scores_are_those_of_transformers(twin: VideoScore) -> None:
    batch = random_videos(random.Random(0))
    assert batch.outputs.videos is not None
    expected = torch.stack([
        by_transformers(twin, video, prompt.text)
        for video, prompt in zip(batch.outputs.videos, batch.prompts, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(twin.score(batch), expected.mean(1), rtol=1e-4, atol=1e-4)
    assert list(DIMENSIONS) == ["VQ", "TC", "DD", "TVA", "FC"]
    for place, dimension in enumerate(DIMENSIONS):
        reward = replace(twin, dimensions=(dimension,))
        reward.prepare(CPU)
        torch.testing.assert_close(reward.score(batch), expected[:, place], rtol=1e-4, atol=1e-4)
    weighted = replace(twin, dimensions=("FC", "DD"), dimension_weights=(1.0, 1.1))
    weighted.prepare(CPU)
    torch.testing.assert_close(weighted.score(batch), expected[:, 4] + 1.1 * expected[:, 2], rtol=1e-4, atol=1e-4)
    assert float(expected.std(0).min()) > 1e-3, "the scores tell videos apart"


@in_one_test(("total", "most"), [(81, 16), (49, 16), (17, 16), (100, 48)])
def test_frames_are_those_of_the_published_example(total: int, most: int) -> None:
    assert sampled_frames(total, most) == np.arange(0, total, total / most).astype(int)[:most].tolist()


def test_short_videos_are_seen_whole() -> None:
    assert sampled_frames(5, 16) == [0, 1, 2, 3, 4] and len(sampled_frames(16, 16)) == 16


@pytest.mark.slow  # makes all modules of the published size, without weights
def test_the_names_and_shapes_are_those_of_mantis_class() -> None:
    """`Idefics2ForSequenceClassification` of TIGER-AI-Lab/Mantis: Idefics2-8B, and `score` with a bias."""
    config = Idefics2Config(num_labels=5, text_config={"model_type": "mistral", "vocab_size": 32003})
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in network_class()(config).state_dict().items()}
        inner = {f"model.{name}" for name in Idefics2Model(config).state_dict()}
    assert set(shapes) - inner == {"score.weight", "score.bias"}
    assert shapes["score.weight"] == (5, 4096) and shapes["score.bias"] == (5,)
    assert {"model.vision_model", "model.connector", "model.text_model"} == {
        ".".join(name.split(".")[:2]) for name in inner
    }


@pytest.mark.slow
def test_what_is_missing_or_wrong_is_named(tmp_path: Path, twin: VideoScore) -> None:
    with pytest.raises(ConfigError, match=r"no question of VideoScore 'run_videoscore\.py'"):
        VideoScore().prepare(CPU)
    with pytest.raises(ConfigError, match="cannot load the VideoScore '/no/such"):
        replace(twin, model="/no/such").prepare(CPU)
    file = tmp_path / "run_videoscore.py"
    file.write_text('raise SystemExit\nREGRESSION_QUERY_PROMPT = "Rate {text_prompt}"\n')
    reward = replace(twin, question=str(file))
    reward.prepare(CPU)
    assert reward._question == "Rate {text_prompt}"
    file.write_text('REGRESSION_QUERY_PROMPT = "Rate it"\n')
    with pytest.raises(ConfigError, match=r"must hold \{text_prompt\} once"):
        reward.prepare(CPU)
    with pytest.raises(ValueError, match="holds '<image>', a mark of the model"):
        twin.check(Prompt("a dog <image>"))
    with pytest.raises(ValueError, match="dimensions must differ, got VQ, VQ"):
        VideoScore(dimensions=("VQ", "VQ"))
    with pytest.raises(ValueError, match="dimension_weights must be none or 5, got 1"):
        VideoScore(dimension_weights=(1.0,))
