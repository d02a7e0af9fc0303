"""What fits on one GPU: the forecast of `mmrl check --gpu` for configs of real size, as they ship or with settings of
memory that change no number but by rounding.

    python benchmarks/fits.py

Nothing is loaded and no GPU is needed; `gb` is the forecast's peak of live tensors, `usable_gb` what of the GPU's
memory is counted as usable. The rows are in `results/fits.jsonl`, and `mmrl check CONFIG KEY=VALUE --gpu GPU` prints
any of them with its phases.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from _common import argument_parser, emit

from mmrl.assembly.forecast import GPUS
from mmrl.commands.check import gpu_forecast
from mmrl.core.config import load_config

RESULTS = Path(__file__).parent / "results" / "fits.jsonl"
HOST = ("memory.optimizer=host", "memory.copies=host")
WHOLE = ("modality.lora=null", "precision=bfloat16", "modality.gradient_checkpointing=true")
ROUNDED = "memory.trained_weights=bfloat16"
FEW_ANSWERS = ("modality.answer_batch=32", "updates.micro_batch=8")
Row = tuple[str, str, Sequence[str], str]
ROWS: Sequence[Row] = (
    ("Qwen2.5-VL-3B, full with a frozen tower, as it ships", "gui_r1_qwen25vl_3b", WHOLE, "h100"),
    (
        "Qwen2.5-VL-3B, full with a frozen tower, optimizer and copies on the host",
        "gui_r1_qwen25vl_3b",
        (*WHOLE, *HOST),
        "h100",
    ),
    (
        "Qwen2.5-VL-3B, full with a frozen tower, the same with bfloat16 weights",
        "gui_r1_qwen25vl_3b",
        (*WHOLE, *HOST, ROUNDED),
        "h100",
    ),
    ("Qwen2.5-VL-7B, LoRA, as it ships", "geometry3k_qwen25vl_7b", (), "h100"),
    ("Qwen2.5-VL-7B, LoRA, 32 answers at once", "geometry3k_qwen25vl_7b", FEW_ANSWERS, "h100"),
    ("Stable Diffusion 3.5 medium, LoRA, as it ships", "flow_grpo_sd35", (), "h100"),
    ("Qwen-Image (20B), 4-bit base and LoRA", "flow_grpo_fast_qwen_image", ("modality.quantise={bits: 4}",), "h100"),
    (
        "Qwen2.5-VL-7B, 4-bit base and LoRA, 8 answers at once",
        "geometry3k_qwen25vl_7b",
        ("modality.quantise={bits: 4}", "modality.answer_batch=8", "updates.micro_batch=4"),
        "4090",
    ),
    (
        "Stable Diffusion 3.5 medium, LoRA, text encoders and rollouts on the host",
        "flow_grpo_sd35",
        (
            "modality.offload_text_encoders=true",
            "modality.gradient_checkpointing=true",
            "memory.rollouts=host",
            "rollout_groups=1",
            "updates.micro_batch=8",
            "modality.network_batch=8",
            "modality.decode_batch=2",
        ),
        "4090",
    ),
)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", nargs="+", type=int, help="rows by their place, from 0")
    chosen = parser.parse_args().only or range(len(ROWS))
    lines = dict[str, str]()
    if RESULTS.is_file():
        lines = {json.loads(line)["what"]: line for line in RESULTS.read_text(encoding="utf-8").splitlines()}
    for name, config, overrides, gpu in (ROWS[place] for place in chosen):
        said = gpu_forecast(load_config(config, list(overrides)), gpu, 1300)
        memory = said["memory_gb"]
        row = {
            "what": name,
            "config": config,
            "overrides": list(overrides),
            "gpu": said["gpu"],
            "gb": memory["peak"],
            "usable_gb": round(GPUS[gpu].usable * GPUS[gpu].memory, 1),
            "host_gb": memory.get("host", 0.0),
            "fits": said["fits"],
            "hours_per_100_iterations": said["hours_per_100_iterations"],
        }
        emit("fits", **row)
        lines[name] = json.dumps(row)
        RESULTS.write_text("".join(f"{lines[what]}\n" for what, *_ in ROWS if what in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
