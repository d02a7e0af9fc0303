"""Live tensors in real iterations on a CPU, against the memory that `mmrl check --gpu` forecasts.

    python benchmarks/forecast.py

Random models of real classes, 50 to 300 million weights, are trained for two iterations. `measured` is the largest sum
of bytes of live tensors until the last optimizer step, weights included; `said` is the forecast of the same settings,
with the length of the prompts as they are, and the optimizer's temporaries of a CPU. `resident` is memory of the
process (Linux), which also holds libraries and what the allocator keeps. Each pair runs in a process of its own.
Bar: `measured_over_said` from 0.9 to 1.1.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from _common import argument_parser, emit
from _vlm import PATCH, VISION

from mmrl.assembly import forecast
from mmrl.assembly.build import build, make_trainer
from mmrl.core.config import RunConfig, load_config
from mmrl.system.live_tensors import LiveTensors

RESULTS = Path(__file__).parent / "results" / "forecast.jsonl"
TOLERANCE = 0.1
COMMON = """
seed: 0
iterations: 2
threads: 1
precision: {precision}
group_size: {group}
prompts_per_iteration: {prompts}
scoring: {{overlap: false}}
prompts: {{train: {folder}/prompts{suffix}}}
loss: {{name: grpo{kl}}}
advantage: {{name: grpo}}
optimizer: {{name: {optimizer}, learning_rate: 1.0e-5}}
memory: {memory}
updates: {{minibatches: {minibatches}, micro_batch: {micro}}}
checkpoint: {{every: 1000}}
"""
ANSWERS = """
modality: {{name: vision_language, model: {folder}/model, family: qwen2_5_vl, lora: {lora}, sharing: {sharing},
  gradient_checkpointing: {checkpointing}}}
sampler: {{name: autoregressive, max_tokens: {tokens}}}
rewards: [{{name: repetition}}]
"""
IMAGES = """
modality: {{name: sd3, model: {folder}/model, height: {side}, width: {side}, lora: {lora}, max_sequence_length: 64,
  gradient_checkpointing: {checkpointing}, network_batch: 8, decode_batch: 4}}
sampler: {{name: flow_sde, num_steps: 3, sigmas: pipeline, guidance_scale: {guidance}}}
rewards: [{{name: jpeg_size}}]
"""
DEFAULTS: dict[str, Any] = {
    "precision": "float32", "group": 4, "prompts": 2, "kl": "", "optimizer": "adamw", "minibatches": 1, "micro": 4,
    "lora": "null", "sharing": "auto", "checkpointing": "false", "tokens": 24, "words": 120, "side": 128,
    "memory": "{}", "guidance": 1.0, "layers": 8, "width": 640, "vocabulary": 8000,
}  # fmt: skip
LORA = "{rank: 16, alpha: 32}"
HOST = "{optimizer: host, copies: host}"
ROUNDED = "{trained_weights: bfloat16}"
BOTH = "{trained_weights: bfloat16, optimizer: host, copies: host}"
PAIRS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "answers, full": ("answers", {}),
    "answers, full, reference copy, several optimizer steps": (
        "answers", {"kl": ", kl_coef: 0.01, kl: k3", "minibatches": 2, "micro": 2},
    ),
    "answers, full, checkpointing, longer": (
        "answers", {"checkpointing": "true", "words": 400, "tokens": 32, "micro": 2},
    ),
    "answers, LoRA, long prompts": ("answers", {"lora": LORA, "words": 600, "micro": 8, "sharing": "packed"}),
    "answers, LoRA, checkpointing, bfloat16": (
        "answers", {"lora": LORA, "words": 600, "checkpointing": "true", "precision": "bfloat16", "prompts": 1},
    ),
    "images, full": ("images", {"micro": 8, "layers": 4}),
    "images, LoRA, guidance": ("images", {"lora": LORA, "micro": 8, "layers": 6, "guidance": 3.0}),
    "images, full, checkpointing, sgd": (
        "images", {"checkpointing": "true", "micro": 8, "layers": 4, "side": 192, "optimizer": "sgd"},
    ),
    "answers, full, all on the host, reference copy": (
        "answers", {"memory": HOST, "kl": ", kl_coef: 0.01, kl: k3", "minibatches": 2, "micro": 2},
    ),
    "answers, full, bfloat16 weights with masters": (
        "answers", {"memory": ROUNDED, "precision": "bfloat16", "micro": 2, "words": 200},
    ),
    "answers, full, bfloat16 weights, reference copy, all on the host": (
        "answers", {"memory": BOTH, "precision": "bfloat16", "kl": ", kl_coef: 0.01, kl: k3", "micro": 2},
    ),
    "images, LoRA, latents and images on the host": (
        "images", {"lora": LORA, "memory": "{rollouts: host}", "micro": 2, "layers": 2, "side": 256, "width": 384},
    ),
    "images, full, bfloat16 weights with masters": (
        "images", {"memory": ROUNDED, "precision": "bfloat16", "micro": 4, "layers": 4},
    ),
    # chosen after the formula was committed
    "images, LoRA, three micro-batches": ("images", {"lora": LORA, "micro": 8, "layers": 5, "width": 768}),
    "answers, full, no sharing of prompts": ("answers", {"sharing": "none", "micro": 2, "words": 200, "layers": 7}),
}  # fmt: skip


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", nargs="+", help="pairs by name")
    parser.add_argument("--one", help="a pair, in this process")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps(compared(arguments.one, Path(name))))
        return
    lines = dict[str, str]()
    if RESULTS.is_file():
        lines = {json.loads(line)["pair"]: line for line in RESULTS.read_text(encoding="utf-8").splitlines()}
    for name in arguments.only or PAIRS:
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        emit("forecast", **row)
        lines[name] = json.dumps(row)
        RESULTS.write_text("".join(f"{lines[pair]}\n" for pair in PAIRS if pair in lines), encoding="utf-8")


def compared(name: str, folder: Path) -> dict[str, Any]:
    """Returns a pair's row: what was said, and what was measured."""
    kind, changed = PAIRS[name]
    settings = {**DEFAULTS, **changed, "folder": folder, "suffix": ".jsonl" if kind == "answers" else ".txt"}
    write: Callable[[Path, Mapping[str, Any]], None] = write_answers if kind == "answers" else write_images
    write(folder, settings)
    text = (COMMON + (ANSWERS if kind == "answers" else IMAGES)).format(**settings)
    (folder / "run.yaml").write_text(text if kind == "images" else _rows(text, folder))
    config = load_config(str(folder / "run.yaml"), [])
    measured, prompt_tokens, weights = measured_of(config, folder)
    said, phases = said_of(config, prompt_tokens)
    ratio = measured / said
    return {
        "pair": name,
        "million_weights": round(weights / 1e6, 1),
        "said_mib": round(said / 2**20, 1),
        "measured_mib": round(measured / 2**20, 1),
        "resident_mib": round(resident() / 2**10, 1),
        "phase": phases,
        "measured_over_said": round(ratio, 3),
        "met": abs(ratio - 1) <= TOLERANCE,
    }


def _rows(text: str, folder: Path) -> str:
    return text.replace(
        f"prompts: {{train: {folder}/prompts.jsonl}}",
        f"prompts: {{train: {{path: {folder}/prompts.jsonl, layout: columns}}}}",
    )


def write_answers(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes a random Qwen2.5-VL whose answers end at their budget, and its prompts."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from mmrl.modalities.tiny.qwen import qwen2_5_vl

    small, processor = qwen2_5_vl()
    tokens, width = processor.tokenizer, settings["width"]
    vocabulary = max(settings["vocabulary"], (len(tokens) + 7) // 8 * 8)
    ends = {"eos_token_id": tokens.eos_token_id, "pad_token_id": tokens.pad_token_id, "bos_token_id": None}
    media = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    text = {
        "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": settings["layers"],
        "num_attention_heads": width // 64, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [12, 10, 10]},
    }  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={**text, **ends, "vocab_size": vocabulary, "initializer_range": 0.02},
            vision_config={**VISION, "patch_size": PATCH, "out_hidden_size": width, "initializer_range": 0.02},
            tie_word_embeddings=False,
            **{name: getattr(small.config, name) for name in media},
        )
    )
    model.generation_config.eos_token_id = [small.config.video_token_id]  # no answer may hold a media token
    model.generation_config.pad_token_id = tokens.pad_token_id
    model.save_pretrained(folder / "model")
    processor.save_pretrained(folder / "model")
    stored = json.loads((folder / "model" / "tokenizer.json").read_text(encoding="utf-8"))
    stored["model"]["vocab"] |= {f"<unspelt {n}>": n for n in range(len(tokens), vocabulary)}
    (folder / "model" / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")
    # prompts of one length; equal ones would share a row
    rows = [{"prompt": f"click {n}" + " box" * settings["words"], "answer": str(n)} for n in range(8)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_images(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes a random Stable Diffusion 3.5 pipeline with a wide transformer."""
    import diffusers

    from mmrl.modalities.tiny.sd3 import write_tiny_sd3

    library: Any = diffusers
    write_tiny_sd3(folder / "model", 0)
    part = folder / "model" / "transformer"
    kind = library.SD3Transformer2DModel
    config = dict(kind.load_config(part))
    heads = settings["width"] // 64
    config |= {
        "num_layers": settings["layers"], "num_attention_heads": heads, "attention_head_dim": 64,
        "caption_projection_dim": 64 * heads, "dual_attention_layers": [0],
    }  # fmt: skip
    torch.manual_seed(0)
    kind.from_config(config).save_pretrained(part)
    (folder / "prompts.txt").write_text("\n".join(f"a dog and {count} cats" for count in range(8)))


def said_of(config: RunConfig, prompt_tokens: int) -> tuple[int, str]:
    """Returns the forecast of the peak in bytes, and the phase that it is in; the device and the host are one here."""
    parts = build(config)
    work, footprint = forecast.footprint_of(config, parts, prompt_tokens)
    memory = forecast.memory_of(config, parts, work, footprint, on_gpu=False)
    host = memory.pop("host", 0)
    del memory["peak"]
    if config.memory.rollouts == "host":  # samples go there when they are made
        memory["rollout"] -= footprint.kept + footprint.outputs
    phase = max(memory, key=lambda name: memory[name])
    return memory[phase] + host, phase


def measured_of(config: RunConfig, folder: Path) -> tuple[int, int, int]:
    """Returns the peak of live tensors until the last optimizer step, the tokens of a prompt, and the weights."""
    trainer = make_trainer(config, build(config), folder / "run")
    policy: Any = trainer.policy
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_of(policy)}
    count = sum(tensor.numel() for tensor in tensors_of(policy))

    live, peaks = LiveTensors(), list[int]()
    trainer.optimizer.register_step_post_hook(lambda *_: peaks.append(live.peak))
    with live:
        trainer.train()

    return sum(held.values()) + peaks[-1], prompt_length(policy), count


def tensors_of(policy: Any) -> list[torch.Tensor]:
    """Returns the weights of a policy: of all parts of a pipeline, or of a model; their copies, and their masters."""
    pipeline = getattr(policy, "_pipeline", None)
    owners = [policy._model] if pipeline is None else [
        part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)
    ]  # fmt: skip
    found = [one for owner in owners for one in (*owner.parameters(), *owner.buffers())]
    copies = [one for which in policy.weights.kept for one in policy.weights.tensors(which).values()]
    masters = [*policy.weights.optimized.values()] if policy.weights.has_masters else []
    return [*found, *copies, *masters]


def prompt_length(policy: Any) -> int:
    """Returns the tokens of the longest prompt that was read; 1 for images."""
    encoder = getattr(policy, "_encoder", None)
    return 1 if encoder is None else max(len(one.tokens) for one in encoder._kept.values())


def resident() -> int:
    """Returns the high-water mark of the process in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()
