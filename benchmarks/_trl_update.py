"""TRL's GRPOTrainer on the folder that vlm_update.py writes; runs in an environment of its own, without mmrl.

For every line on stdin it makes one optimizer step, and prints the seconds of its update and of what comes before it.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

Seconds = tuple[float, float]  # on the clock, and of this process's work
GO, OUT = sys.stdin, os.fdopen(os.dup(1), "w")


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def later(seconds: Seconds, start: Seconds) -> Seconds:
    clock, work = (total + end - begin for total, end, begin in zip(seconds, now(), start, strict=True))
    return clock, work


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is not in this environment
    """Stops before each optimizer step, and tells forward and backward passes from generation and scoring."""

    calls = 0
    whole = before = (0.0, 0.0)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        start = now()
        prepared = super()._prepare_inputs(generation_batch)
        self.before = later(self.before, start)
        return prepared

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.calls % self.args.gradient_accumulation_steps == 0:
            if not GO.readline():
                sys.exit()
            self.whole = self.before = (0.0, 0.0)
        self.calls += 1
        start = now()
        loss = super().training_step(*args, **kwargs)
        self.whole = later(self.whole, start)
        if self.calls % self.args.gradient_accumulation_steps == 0:
            update, update_cpu = (a - b for a, b in zip(self.whole, self.before, strict=True))
            OUT.write(json.dumps({"update": update, "update_cpu": update_cpu, "before": self.before[0]}) + "\n")
            OUT.flush()
        return loss


def unlike(completions: list[Any], **columns: Any) -> list[float]:
    """Another reward for each member of a group."""
    return [float(number) for number in range(len(completions))]


def main() -> None:
    folder, group_size, num_tokens, threads = Path(sys.argv[1]), *(int(word) for word in sys.argv[2:])
    torch.set_num_threads(threads)
    texts = json.loads((folder / "trl" / "prompts.json").read_text(encoding="utf-8"))
    rows = [
        {"prompt": [{"role": "user", "content": text}], "image": Image.open(folder / "trl" / f"{number}.png")}
        for number, text in enumerate(texts)
    ]
    settings = GRPOConfig(
        output_dir=str(folder / "trl" / "run"),
        per_device_train_batch_size=group_size,
        gradient_accumulation_steps=len(rows),
        num_generations=group_size,
        max_completion_length=num_tokens,
        generation_kwargs={"min_new_tokens": num_tokens},
        beta=0.0,
        num_iterations=1,
        loss_type="grpo",
        temperature=1.0,
        learning_rate=0.0,
        max_steps=1000,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    TimedTrainer(
        model=model,
        args=settings,
        reward_funcs=unlike,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoProcessor.from_pretrained(folder, padding_side="left"),
    ).train()


if __name__ == "__main__":
    main()
