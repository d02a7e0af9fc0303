"""Writes configs/families/: for each family of pipelines that tests drive, a config that trains its published model.

python scripts/family_configs.py
The algorithm is Flow-GRPO everywhere, so that the configs differ by what the model needs and nothing else.
"""

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

FOLDER = Path(__file__).resolve().parents[1] / "configs" / "families"
_FLUX3 = "black-forest-labs/FLUX-3-Image-Klein-Base"
SQUARE, SMALL_CLIP = (512, 512), (256, 448)  # height and width in pixels


@dataclass(frozen=True)
class Model:
    """A published model of a family, and what its pipeline's call is given in training."""

    title: str
    hub: str
    guidance: float = 1.0  # of the plan; 1: off, also where guidance is an input of the network
    size: tuple[int, int] = SQUARE
    frames: int | None = None  # of a video
    has_sound: bool = False  # the pipeline makes sound beside the video
    conditions: int = 0  # images that each prompt brings, all for the argument of the picture to edit
    named: str = ""  # the argument for each image, as YAML, where they are others
    arguments: str = ""  # further ones of the call, as YAML
    modular: bool = False
    removed_blocks: str = ""  # of a modular pipeline, as YAML
    data: str = ""  # the name of the files of prompts
    rows: str = ""  # the images of their rows, in the layout `edit`


MODELS = {
    # pictures
    "sd3": Model("Stable Diffusion 3.5 Medium", "stabilityai/stable-diffusion-3.5-medium", 4.5),
    "flux": Model("FLUX.1 [dev]", "black-forest-labs/FLUX.1-dev", arguments="guidance_scale: 3.5"),
    "flux2": Model("FLUX.2 [dev]", "black-forest-labs/FLUX.2-dev", arguments="guidance_scale: 4.0"),
    "flux2_klein": Model("FLUX.2 [klein] base 9B", "black-forest-labs/FLUX.2-klein-base-9B", 4.0),
    "flux3": Model("FLUX.3 [klein] base", _FLUX3, 4.0, modular=True, removed_blocks="prompt_upsampler"),
    "modular_flux": Model(
        "FLUX.1 [dev], modular", "black-forest-labs/FLUX.1-dev", arguments="guidance_scale: 3.5", modular=True
    ),
    "modular_flux2_klein": Model("FLUX.2 [klein] 4B, modular", "black-forest-labs/FLUX.2-klein-4B", modular=True),
    "modular_qwen_image": Model("Qwen-Image, modular", "Qwen/Qwen-Image", 4.0, modular=True),
    "modular_qwen_image21": Model(
        "Qwen-Image 2.1, modular", "Qwen/Qwen-Image-2.1", 4.0, arguments="use_kv_cache: false", modular=True
    ),
    "modular_z_image": Model("Z-Image, modular", "Tongyi-MAI/Z-Image", 4.0, modular=True),
    "aura_flow": Model("AuraFlow 0.3", "fal/AuraFlow-v0.3", 3.5),
    "qwen_image": Model("Qwen-Image", "Qwen/Qwen-Image", 4.0),
    "qwen_image21": Model("Qwen-Image 2.1", "Qwen/Qwen-Image-2.1", 4.0, arguments="use_kv_cache: false"),
    "z_image": Model("Z-Image", "Tongyi-MAI/Z-Image", 4.0),
    "lumina2": Model("Lumina-Image 2.0", "Alpha-VLLM/Lumina-Image-2.0", 4.0),
    "sana": Model("Sana 1.6B", "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers", 4.5, (1024, 1024)),
    "chroma": Model("Chroma1-HD", "lodestones/Chroma1-HD", 3.0),
    "hidream": Model("HiDream-I1 Full", "HiDream-ai/HiDream-I1-Full", 5.0, (1024, 1024)),
    "krea2": Model("Krea 2 Raw", "krea/Krea-2-Raw", 4.5),
    "longcat_image": Model("LongCat-Image", "meituan-longcat/LongCat-Image", 4.5),
    "glm_image": Model("GLM-Image", "zai-org/GLM-Image", 1.5, (1024, 1024)),
    "kandinsky5_t2i": Model(
        "Kandinsky 5.0 T2I Lite", "kandinskylab/Kandinsky-5.0-T2I-Lite-sft-Diffusers", 3.5, (1024, 1024)
    ),
    "cosmos2_t2i": Model("Cosmos-Predict2 2B Text2Image", "nvidia/Cosmos-Predict2-2B-Text2Image", 7.0, (768, 1360)),
    # edits
    "flux_kontext": Model(
        "FLUX.1 Kontext [dev]",
        "black-forest-labs/FLUX.1-Kontext-dev",
        conditions=1,
        arguments="guidance_scale: 2.5, max_area: 262144",
    ),
    "flux2_edit": Model(
        "FLUX.2 [dev], editing", "black-forest-labs/FLUX.2-dev", conditions=1, arguments="guidance_scale: 4.0"
    ),
    "flux2_klein_edit": Model(
        "FLUX.2 [klein] base 9B, editing", "black-forest-labs/FLUX.2-klein-base-9B", 4.0, conditions=1
    ),
    "flux3_edit": Model(
        "FLUX.3 [klein] base, editing", _FLUX3, 4.0, conditions=1, modular=True, removed_blocks="prompt_upsampler"
    ),
    "qwen_image_edit": Model("Qwen-Image-Edit", "Qwen/Qwen-Image-Edit", 4.0, (1024, 1024), conditions=1),
    "qwen_image_edit_plus": Model("Qwen-Image-Edit 2509", "Qwen/Qwen-Image-Edit-2509", 4.0, (1024, 1024), conditions=2),
    "qwen_image21_edit": Model(
        "Qwen-Image 2.1, editing", "Qwen/Qwen-Image-2.1", 4.0, conditions=1, arguments="use_kv_cache: false"
    ),
    # from other images
    "flux_control": Model(
        "FLUX.1 Canny [dev]",
        "black-forest-labs/FLUX.1-Canny-dev",
        named="control_image",
        arguments="guidance_scale: 30.0",
        data="controls",
        rows='"control": "edges.png"',
    ),
    "flux_fill": Model(
        "FLUX.1 Fill [dev]",
        "black-forest-labs/FLUX.1-Fill-dev",
        named="image, mask_image",
        arguments="guidance_scale: 30.0",
        data="masked",
        rows='"image": "a.png", "mask": "where.png"',
    ),
    "wan22_flf2v": Model(
        "Wan 2.2 I2V A14B from a first and a last frame",
        "Wan-AI/Wan2.2-I2V-A14B-Diffusers",
        3.5,
        SMALL_CLIP,
        33,
        named="image, last_image",
        data="first_and_last_frames",
        rows='"image": "first.png", "last_image": "last.png"',
    ),
    "wan21_flf2v": Model(
        "Wan 2.1 FLF2V 14B from a first and a last frame",
        "Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers",
        5.5,
        SMALL_CLIP,
        33,
        named="image, last_image",
        data="first_and_last_frames",
        rows='"image": "first.png", "last_image": "last.png"',
    ),
    # videos
    "wan21": Model("Wan 2.1 T2V 1.3B", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", 5.0, SMALL_CLIP, 33),
    "wan22": Model(
        "Wan 2.2 T2V A14B",
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        4.0,
        SMALL_CLIP,
        33,
        arguments="guidance_scale_2: 3.0",
    ),
    "wan22_5b": Model("Wan 2.2 TI2V 5B", "Wan-AI/Wan2.2-TI2V-5B-Diffusers", 5.0, SMALL_CLIP, 33),
    "wan22_5b_i2v": Model(
        "Wan 2.2 TI2V 5B from a first frame", "Wan-AI/Wan2.2-TI2V-5B-Diffusers", 5.0, SMALL_CLIP, 33, conditions=1
    ),
    "wan_i2v": Model("Wan 2.1 I2V 14B", "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", 5.0, SMALL_CLIP, 33, conditions=1),
    "ltx": Model("LTX-Video", "Lightricks/LTX-Video", 3.0, SMALL_CLIP, 33),
    "ltx_i2v": Model("LTX-Video from a first frame", "Lightricks/LTX-Video", 3.0, SMALL_CLIP, 33, conditions=1),
    "ltx2": Model("LTX-2", "Lightricks/LTX-2", 4.0, SMALL_CLIP, 33, True),
    "ltx2_i2v": Model("LTX-2 from a first frame", "Lightricks/LTX-2", 4.0, SMALL_CLIP, 33, True, conditions=1),
    "ltx25": Model("LTX-2.5", "Lightricks/LTX-2.5-Diffusers", 4.0, SMALL_CLIP, 33, True, modular=True),
    "hunyuan_video": Model(
        "HunyuanVideo", "hunyuanvideo-community/HunyuanVideo", 1.0, SMALL_CLIP, 33, arguments="guidance_scale: 6.0"
    ),
    "hunyuan_video15": Model(
        "HunyuanVideo 1.5 480p", "hunyuanvideo-community/HunyuanVideo-1.5-480p_t2v", 6.0, SMALL_CLIP, 33
    ),
    "hunyuan_video15_i2v": Model(
        "HunyuanVideo 1.5 480p from a first frame",
        "hunyuanvideo-community/HunyuanVideo-1.5-480p_i2v",
        6.0,
        SMALL_CLIP,
        33,
        conditions=1,
    ),
    "cogvideox": Model("CogVideoX 2B", "THUDM/CogVideoX-2b", 6.0, (480, 720), 49),
    "kandinsky5_t2v": Model(
        "Kandinsky 5.0 T2V Lite", "kandinskylab/Kandinsky-5.0-T2V-Lite-sft-5s-Diffusers", 5.0, (512, 768), 121
    ),
    "kandinsky6": Model(
        "Kandinsky 6.0 Pro", "kandinskylab/Kandinsky-6.0-Pro-distill-5s-Diffusers", 1.0, (512, 768), 121, True
    ),
    "cosmos25": Model("Cosmos-Predict2.5 2B", "nvidia/Cosmos-Predict2.5-2B", 7.0, (704, 1280), 93),
    "mochi": Model("Mochi 1", "genmo/mochi-1-preview", 4.5, (480, 848), 31),
    "chronoedit": Model("ChronoEdit 14B", "nvidia/ChronoEdit-14B-Diffusers", 5.0, (480, 832), 5, conditions=1),
}

RECIPE = """\
recipe:
  name: Flow-GRPO
  paper: 'Liu et al. 2025, "Flow-GRPO: Training Flow Matching Models via Online RL"'
  arxiv: "2505.05470"
  level: twin
seed: 0
iterations: 500
precision: bfloat16
group_size: 16
prompts_per_iteration: 16
rollout_groups: 2  # memory only
"""
TEXTS = """\
prompts:
  train: prompts/compositions_train.txt
  held_out: prompts/compositions_held_out.txt
"""
PICTURES = """\
prompts:  # rows of {"prompt": ..., "images": [...]}, with as many images as condition_images says
  train: {path: data/%(data)s_train.jsonl}
  held_out: {path: data/%(data)s_held_out.jsonl, limit: 64}
"""
ROLES = """\
prompts:  # rows of {"prompt": ..., %(rows)s}
  train: {path: data/%(data)s_train.jsonl, layout: edit}
  held_out: {path: data/%(data)s_held_out.jsonl, layout: edit, limit: 64}
"""
REST = """\
advantage:
  name: grpo
loss:
  name: grpo
  clip_low: 1.0e-4
  clip_high: 1.0e-4
  kl_coef: 0.002
  kl: exact
  normalise: decision
updates:
  minibatches: 2
  micro_batch: %(micro_batch)d
optimizer:
  learning_rate: 3.0e-4
  weight_decay: 1.0e-4
evaluation:
  every: 50
  sampler: {name: ode, num_steps: %(steps)d, sigmas: pipeline, guidance_scale: %(guidance)s}
  num_prompts: 64
checkpoint:
  every: 50
"""


def text_of(family: str, model: Model) -> str:
    """Returns the config of a family's model as YAML."""
    is_video = model.frames is not None
    has_images = model.conditions > 0 or model.named != ""
    what = "clips" if is_video else "edits" if has_images else "images"
    data = model.data or ("first_frames" if is_video else "edits")
    settings = [f"family: {family}", f"model: {model.hub}"]
    settings += [f"height: {model.size[0]}", f"width: {model.size[1]}"]
    settings += [f"num_frames: {model.frames}", "output: video"] if is_video else []
    settings += ["audio: true"] if model.has_sound else []
    settings += [f"condition_images: {model.conditions}"] if model.conditions else []
    settings += [f"conditions: [{model.named}]"] if model.named else []
    settings += [f"arguments: {{{model.arguments}}}"] if model.arguments else []
    settings += ["modular: true"] if model.modular else []
    settings += [f"removed_blocks: [{model.removed_blocks}]"] if model.removed_blocks else []
    settings += ["lora: {rank: 32, alpha: 64}", "gradient_checkpointing: true", "offload_text_encoders: true"]
    settings += [f"network_batch: {4 if is_video else 16}", f"decode_batch: {1 if is_video else 8}"]
    judge = "  - name: frame_mean\n    reward: {name: pick_score}\n" if is_video else "  - name: pick_score\n"
    numbers = {
        "micro_batch": 2 if is_video else 8,
        "steps": 28,
        "guidance": model.guidance,
        "data": data,
        "rows": model.rows,
    }
    sampler = f"""\
        sampler:
          name: flow_sde
          num_steps: 10
          sigmas: pipeline
          noise_level: 0.7
          guidance_scale: {model.guidance}
        """
    return (
        f"# Flow-GRPO on {model.title}: {what} by PickScore, with LoRA, driven by the pipeline's own code.\n"
        + RECIPE
        + (ROLES if model.named else PICTURES if model.conditions else TEXTS) % numbers
        + "modality:\n  name: diffusers_pipeline\n"
        + indent("\n".join(settings) + "\n", "  ")
        + dedent(sampler)
        + "rewards:\n"
        + judge
        + REST % numbers
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.yaml"):
        if path.stem not in MODELS:
            path.unlink()
    for family, model in MODELS.items():
        (FOLDER / f"{family}.yaml").write_text(text_of(family, model), encoding="utf-8")
    print(f"{len(MODELS)} configs in {FOLDER.name}/")
