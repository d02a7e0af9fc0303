"""video_align against transformers' own Qwen2-VL, one video at a time, and the published names and shapes."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from qwen_vl_utils.vision_process import smart_nframes
from torch import Tensor
from transformers import AutoTokenizer, Qwen2VLConfig, Qwen2VLModel, Qwen2VLVideoProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.base.networks.qwen_vl import as_patches
from mmrl.rewards.base.networks.resizing import within_pixels
from mmrl.rewards.base.networks.video_reward import ORIGIN, QUESTION, VideoRewardNetwork, merged
from mmrl.rewards.base.published_questions import read_text
from mmrl.rewards.models.video_align import VideoAlign, sampled_frames
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_images, random_texts

MARKS = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")


def random_videos(rng: random.Random) -> RewardBatch:
    frames = torch.stack([random_images(rng, 4) for _ in range(4)])
    return make_batch(Outputs(videos=frames), random_texts(rng, 4))


EXAMPLE = Example(random_batch=random_videos)  # no truth: a model of taste


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> VideoAlign:
    twin = VideoAlign().tiny(0, tmp_path_factory.mktemp("video_align"))
    twin.prepare(CPU)
    return twin


def by_transformers(twin: VideoAlign, frames: Tensor, text: str) -> Tensor:
    """The raw scores [3] of frames [F, 3, H, W], by the pipeline of transformers and weights merged by hand."""
    config = Qwen2VLConfig.from_pretrained(twin.base)
    published = torch.load(twin.checkpoint, weights_only=True)
    alpha = json.loads(Path(twin.configuration).read_text())["peft_lora_config"]["lora_alpha"]
    own = {}
    for name, value in published.items():
        if "lora" not in name:
            if name.endswith("base_layer.weight"):
                a, b = (published[name.replace("base_layer.weight", f"lora_{side}.default.weight")] for side in "AB")
                value = value + (b @ a) * (alpha / a.shape[0])
            own[name.replace("base_layer.", "").replace("base_model.model.", "", 1)] = value
    head = own.pop("rm_head.weight")
    config.text_config.vocab_size = len(own["model.embed_tokens.weight"])
    model = Qwen2VLModel(config)
    model.load_state_dict({name.replace("model.", "language_model.", 1): value for name, value in own.items()})
    tokenizer = AutoTokenizer.from_pretrained(twin.base)
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    processor = Qwen2VLVideoProcessor(size={"shortest_edge": 784, "longest_edge": 2**28}, do_rescale=False)
    seen = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    pads = "<|video_pad|>" * int(seen["video_grid_thw"].prod() // 4)
    question = Path(twin.question).read_text().replace("{text_prompt}", text)
    shown = f"<|vision_start|>{pads}<|vision_end|>{question}"
    ids = tokenizer(f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n", return_tensors="pt").input_ids
    with torch.no_grad():
        states = model.eval()(
            input_ids=ids,
            pixel_values_videos=seen["pixel_values_videos"],
            video_grid_thw=seen["video_grid_thw"],
            position_ids=torch.arange(ids.shape[1]).view(1, 1, -1).expand(3, 1, -1),
        ).last_hidden_state[0]
    places = [ids[0].tolist().index(mark) for mark in tokenizer.convert_tokens_to_ids(list(MARKS))]
    scores: Tensor = states[places] @ head[0]
    return scores


@pytest.mark.slow  # two networks, of which transformers' own judges one video at a time
def test_scores_are_those_of_transformers_by_the_published_normalisers(twin: VideoAlign) -> None:
    batch = random_videos(random.Random(0))
    assert batch.outputs.videos is not None
    frames = within_pixels(batch.outputs.videos, twin.min_pixels, twin.max_pixels)
    raw = torch.stack(
        [by_transformers(twin, clip, prompt.text) for clip, prompt in zip(frames, batch.prompts, strict=True)]
    )
    expected = (raw - torch.tensor([3.6757, 1.1646, 2.8105])) / torch.tensor([2.2476, 1.3811, 2.5121])
    torch.testing.assert_close(twin.score(batch), expected.sum(1), rtol=1e-4, atol=1e-4)
    twin.dimensions = ("MQ",)
    torch.testing.assert_close(twin.score(batch), expected[:, 1], rtol=1e-4, atol=1e-4)
    twin.dimensions = ("VQ", "MQ", "TA")
    assert float(raw.std(0).min()) > 1e-3, "the scores tell videos apart"


def test_patches_are_those_of_the_processor() -> None:
    frames = torch.rand(4, 3, 56, 84, generator=torch.Generator().manual_seed(0))
    processor = Qwen2VLVideoProcessor(size={"shortest_edge": 784, "longest_edge": 2**28}, do_rescale=False)
    seen = processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    patches, grid = as_patches(frames[None], Qwen2VLConfig().vision_config)
    torch.testing.assert_close(patches, seen["pixel_values_videos"])
    assert grid.tolist() == seen["video_grid_thw"].tolist() == [[2, 4, 6]]


@pytest.mark.slow
def test_scores_have_a_gradient_to_every_pair_of_frames(twin: VideoAlign) -> None:
    batch = random_videos(random.Random(1))
    assert batch.outputs.videos is not None
    videos = batch.outputs.videos.clone().requires_grad_()
    twin.score(replace(batch, outputs=Outputs(videos=videos))).sum().backward()
    assert videos.grad is not None and (videos.grad.flatten(2).abs().amax(2) > 0).all()


@in_one_test(
    ("num_frames", "video_fps", "fps"),
    [(81, 16.0, 2.0), (33, 16.0, 2.0), (53, 8.0, 2.0), (5, 16.0, 2.0), (3, 8.0, 1.0)],
)
def test_frames_are_taken_evenly_as_qwen_vl_utils_counts_them(num_frames: int, video_fps: float, fps: float) -> None:
    most = min(768, num_frames) // 2 * 2
    found = sampled_frames(num_frames, video_fps, fps)
    bounds = {"fps": fps, "min_frames": min(4, most), "max_frames": most}
    assert abs(len(found) - smart_nframes(bounds, num_frames, video_fps)) in (0, 2), "that rounds down"
    assert found[0] == 0 and found[-1] == num_frames - 1 and len(found) % 2 == 0 and found == sorted(set(found))


def test_a_clip_of_five_seconds_has_ten_frames() -> None:
    assert sampled_frames(81, 16.0, 2.0) == [0, 9, 18, 27, 36, 44, 53, 62, 71, 80]
    assert sampled_frames(53, 8.0, 2.0) == list(range(0, 53, 4)), "13.25 are rounded to 14"


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of Qwen2-VL-2B as KwaiVGI's checkpoint has them, but for its LoRA; 151,657 words and 3 marks."""
    shapes: dict[str, tuple[int, ...]] = {
        "visual.patch_embed.proj.weight": (1280, 3, 2, 14, 14),
        "visual.merger.ln_q.weight": (1280,),
        "visual.merger.ln_q.bias": (1280,),
        "visual.merger.mlp.0.weight": (5120, 5120),
        "visual.merger.mlp.0.bias": (5120,),
        "visual.merger.mlp.2.weight": (1536, 5120),
        "visual.merger.mlp.2.bias": (1536,),
        "model.embed_tokens.weight": (151660, 1536),
        "model.norm.weight": (1536,),
        "rm_head.weight": (1, 1536),
    }
    for layer in range(32):
        stem = f"visual.blocks.{layer}"
        shapes |= {f"{stem}.norm{n}.{part}": (1280,) for n in (1, 2) for part in ("weight", "bias")}
        sizes = {"attn.qkv": (3840, 1280), "attn.proj": (1280, 1280), "mlp.fc1": (5120, 1280), "mlp.fc2": (1280, 5120)}
        shapes |= {f"{stem}.{name}.weight": size for name, size in sizes.items()}
        shapes |= {f"{stem}.{name}.bias": size[:1] for name, size in sizes.items()}
    for layer in range(28):
        stem = f"model.layers.{layer}"
        shapes |= {f"{stem}.{norm}.weight": (1536,) for norm in ("input_layernorm", "post_attention_layernorm")}
        for name, rows in (("q", 1536), ("k", 256), ("v", 256), ("o", 1536)):
            shapes[f"{stem}.self_attn.{name}_proj.base_layer.weight"] = (rows, 1536)
            if name != "o":
                shapes[f"{stem}.self_attn.{name}_proj.base_layer.bias"] = (rows,)
        for name, size in (("gate", (8960, 1536)), ("up", (8960, 1536)), ("down", (1536, 8960))):
            shapes[f"{stem}.mlp.{name}_proj.base_layer.weight"] = size
    return {f"base_model.model.{name}": shape for name, shape in shapes.items()}


@pytest.mark.slow  # makes all modules of the published size, without weights
def test_the_published_names_and_shapes_fit_the_network() -> None:
    config = Qwen2VLConfig(
        text_config={
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151660,
        },
        vision_config={"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "mlp_ratio": 4},
    )
    with torch.device("meta"):
        own = {name: tuple(value.shape) for name, value in VideoRewardNetwork(config).state_dict().items()}
        weights = {name: torch.empty(shape) for name, shape in published_shapes().items()}
        for name in list(weights):
            if name.endswith("base_layer.weight"):
                rows, columns = weights[name].shape
                stem = name.removesuffix("base_layer.weight")
                weights[f"{stem}lora_A.default.weight"] = torch.empty(64, columns)
                weights[f"{stem}lora_B.default.weight"] = torch.empty(rows, 64)
        weights["base_model.model.lm_head.weight"] = torch.empty(151660, 1536)
        found = {name: tuple(value.shape) for name, value in merged(weights, 128.0).items()}
    assert found == own


def test_the_published_file_of_questions_is_read_and_not_run(tmp_path: Path) -> None:
    text = "Rate: <|VQ_reward|>, <|MQ_reward|>, <|TA_reward|> for {text_prompt}"
    file = tmp_path / "prompt_template.py"
    file.write_text(f'raise SystemExit\nOTHER = "x"\nDETAILED_PROMPT_WITH_SPECIAL_TOKEN = """{text}"""\n')
    assert read_text("question of VideoReward", str(file), QUESTION, ORIGIN) == text


def test_a_missing_or_wrong_question_is_named(tmp_path: Path, twin: VideoAlign) -> None:
    with pytest.raises(ConfigError, match=r"no question of VideoReward 'prompt_template\.py'.*; take DETAILED_PROMPT"):
        VideoAlign().prepare(CPU)
    file = tmp_path / "question.txt"
    file.write_text("<|VQ_reward|> <|MQ_reward|> {text_prompt}")
    with pytest.raises(ConfigError, match=r"must hold <\|TA_reward\|> once"):
        replace(twin, question=str(file)).prepare(CPU)
    with pytest.raises(ValueError, match=r"holds '<\|MQ_reward\|>', a mark of the model"):
        twin.check(Prompt("a dog <|MQ_reward|>"))


def test_one_dimension_counts_once() -> None:
    with pytest.raises(ValueError, match="dimensions must differ, got VQ, VQ"):
        VideoAlign(dimensions=("VQ", "VQ"))


def test_the_bounds_of_pixels_are_those_of_the_published_code() -> None:
    assert within_pixels(torch.zeros(1, 2, 3, 480, 832), 128 * 784, 256 * 784).shape[-2:] == (336, 588)
    with pytest.raises(ValueError, match=r"min_pixels must be at most max_pixels \(784\), got 100352"):
        VideoAlign(max_pixels=784)
