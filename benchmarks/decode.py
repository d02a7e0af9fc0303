"""Decoding on the trainer's own model: steps a second, operations and host reads of a step, live tensors; JSON lines.

    python benchmarks/decode.py --against PATH --pairs 5
    python benchmarks/decode.py --kernels

`--against`: a checkout of an older commit, which takes turns with this one, each in a process of its own that samples
the same answers. Ratios are of CPU seconds, this checkout's over the older one's, the median over pairs. `--kernels`
counts kernels of one step of Qwen2.5-VL-7B, on tensors without content, by this checkout alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[1]
# 72 million weights: a Qwen2.5-VL of 16 layers of width 512 with 32,000 tokens
TEXT = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "initializer_range": 0.06,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 8, 8]},
}
VISION = {"depth": 6, "hidden_size": 256, "intermediate_size": 768, "num_heads": 4, "out_hidden_size": 512,
          "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1, 3, 5]}  # fmt: skip
PIXELS = (28 * 8) ** 2  # of each image of the random model
CASES: dict[str, dict[str, Any]] = {
    "screens": {},
    "random": {},
    "random, LoRA": {"lora": {"rank": 16, "alpha": 32}},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "random, LoRA, merged": {"lora": {"rank": 16, "alpha": 32, "merge_rollouts": True}},
}
_VIEWS = ("view", "reshape", "transpose", "permute", "expand", "slice", "select", "split", "unsqueeze", "squeeze", "t",
          "detach", "alias", "unbind", "as_strided", "chunk", "empty", "_unsafe_view", "lift_fresh")  # fmt: skip
_HANDED = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "item")


class Operations(TorchDispatchMode):
    """Counts operations that compute, and those that hand a value to the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.computed = self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[-1]
        self.reads += name in _HANDED
        self.computed += name not in (*_VIEWS, *_HANDED)
        return func(*args, **(kwargs or {}))


class Decoder:
    """A policy and prompts that it answers, by the package that this process imports."""

    def __init__(self, case: str, folder: Path, answers: int, tokens: int, url: str = "") -> None:
        """Loads or makes the model of a case; a vLLM server at `url`, where one is named, samples in its place."""
        self.answers, self.tokens = answers, tokens
        torch.set_num_threads(1)
        if case == "screens":
            self._load_screens()
        else:
            self._make_random(folder, (CASES | OPTIONS)[case])
        if url:
            from mmrl.modalities.tokens.vllm.engine import Vllm

            self.policy.engine = Vllm(name="vllm", url=url)

    def _load_screens(self) -> None:
        from mmrl.assembly.build import build
        from mmrl.core.config import load_config
        from mmrl.core.contracts import Placement

        parts = build(load_config("quickstart_gui", []))
        self.policy: Any = parts.policy
        self.policy.prepare(Placement(torch.device("cpu"), torch.float32))
        self.prompts: Sequence[Any] = parts.prompts.every[: self.answers // 8]
        self.tokens = 12

    def _make_random(self, folder: Path, settings: dict[str, Any]) -> None:
        from _vlm import make_prompts

        from mmrl.core.contracts import Placement
        from mmrl.modalities.loading.lora import Lora
        from mmrl.modalities.vision_language import VisionLanguage

        lora = None if "lora" not in settings else Lora(**settings["lora"])
        policy = VisionLanguage(model=str(folder), lora=lora, min_pixels=PIXELS, max_pixels=PIXELS)
        dtype = torch.float32 if lora is None else torch.bfloat16
        policy.prepare(Placement(torch.device("cpu"), dtype))
        generator = torch.Generator().manual_seed(1)
        for name, tensor in policy.weights.parameters.items():
            if "lora_B" in name:
                tensor.data.copy_(torch.randn(tensor.shape, generator=generator) / 100)
        self.policy, self.prompts = policy, make_prompts(policy, self.answers // 8, 256)

    def sample(self) -> Any:
        """Samples the answers, 8 to each prompt."""
        from mmrl.core.keys import GroupKey
        from mmrl.plans.answers import AnswerPlan

        keys = [GroupKey(0, 0, number) for number in range(len(self.prompts))]
        return self.policy.rollout(self.prompts, [AnswerPlan(8, self.tokens)] * len(keys), keys).trace.completions

    def figures(self) -> dict[str, float]:
        """Returns seconds, steps and tokens of one rollout, the prompts' reading included."""
        begin, cpu = time.perf_counter(), time.process_time()
        completions = self.sample()
        cpu_seconds, seconds = time.process_time() - cpu, time.perf_counter() - begin
        length = completions.length
        return {"cpu_seconds": cpu_seconds, "seconds": seconds, "steps": int(length.max()), "tokens": int(length.sum())}

    def sync(self) -> dict[str, float]:
        """Changes a weight and sends the server all; returns the seconds that sending took."""
        with torch.no_grad():
            next(iter(self.policy.weights.parameters.values())).add_(1e-6)
        begin = time.perf_counter()
        self.policy.send_weights()
        return {"seconds": time.perf_counter() - begin}

    def counts(self) -> dict[str, Any]:
        """Returns operations and host reads of a step (of 8 steps more), live tensors, and what was sampled."""
        from mmrl.system.live_tensors import LiveTensors

        counted, tokens = [], self.tokens
        self.sample()  # what is made once is there
        for more in (0, 8):
            self.tokens = 4 + more
            with Operations() as operations:
                steps = int(self.sample().length.max())
            counted.append((steps, operations.computed, operations.reads))
        self.tokens = tokens
        with LiveTensors() as live:
            completions = self.sample()
        steps = max(1, counted[1][0] - counted[0][0])
        return {
            "operations_a_step": round((counted[1][1] - counted[0][1]) / steps, 1),
            "reads_a_step": round((counted[1][2] - counted[0][2]) / steps, 2),
            "peak_mib": round(live.peak / 2**20, 2),
            "sum_of_tokens": int(completions.tokens.sum()),
            "sum_of_log_probs": float(completions.log_prob.double().sum()),
        }


def work() -> None:
    """Answers questions of the other process, one JSON line each."""
    settings = json.loads(sys.stdin.readline())
    decoder = Decoder(**settings | {"folder": Path(settings["folder"])})
    print(json.dumps({}), flush=True)
    answers = {"counts": decoder.counts, "figures": decoder.figures, "sync": decoder.sync}
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)


class Worker:
    """A process that decodes by the package of a checkout."""

    def __init__(self, checkout: Path, **settings: Any) -> None:
        """Starts the process and waits until its model is there."""
        path = os.pathsep.join([str(checkout), str(ROOT / "benchmarks")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            cwd=checkout,
        )
        self.ask(json.dumps(settings))

    def ask(self, question: str) -> dict[str, Any]:
        """Returns the answer to a question."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return cast("dict[str, Any]", json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def write_random(folder: Path) -> int:
    """Writes the random model, whose answers end at their budget; returns the number of its weights."""
    import _vlm

    _vlm.TEXT, _vlm.VISION = TEXT, VISION
    _vlm.write_model(folder, TEXT["vocab_size"], is_endless=True)  # type: ignore[arg-type]
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as stored:
        return sum(stored.get_tensor(name).numel() for name in stored.keys())  # noqa: SIM118  # no mapping


def compare(case: str, folder: Path, options: argparse.Namespace, against: Path, base: str) -> dict[str, Any]:
    """Returns the figures of this checkout (`here`) and of the other (`before`), which take turns."""
    shape = {"folder": str(folder), "answers": options.answers, "tokens": options.tokens}
    sides = {"here": Worker(ROOT, case=case, **shape), "before": Worker(against, case=base, **shape)}
    try:
        counts = {side: worker.ask("counts") for side, worker in sides.items()}
        pairs = []
        for number in range(options.pairs + 1):
            order = ("here", "before") if number % 2 else ("before", "here")
            pairs.append({side: sides[side].ask("figures") for side in order})
    finally:
        for worker in sides.values():
            worker.end()
    pairs = pairs[1:]
    row: dict[str, Any] = {"case": case, "before_is": base, "answers": options.answers}
    for side, own in counts.items():
        seconds = statistics.median(pair[side]["cpu_seconds"] for pair in pairs)
        row[side] = {**own, "steps_a_cpu_second": round(pairs[0][side]["steps"] / seconds, 2)}
    ratios = [pair["here"]["cpu_seconds"] / pair["before"]["cpu_seconds"] for pair in pairs]
    row["cpu_ratio"] = round(statistics.median(ratios), 3)
    row["cpu_ratios"] = [round(ratio, 3) for ratio in ratios]
    row["same_tokens"] = counts["here"]["sum_of_tokens"] == counts["before"]["sum_of_tokens"]
    return row


def kernels(name: str, text: dict[str, Any], vision: dict[str, Any]) -> dict[str, Any]:
    """Returns the kernels of one step of a model in bf16: base, LoRA of rank 64 (and with peft's casts), merged."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from mmrl.modalities.loading.lora import Lora
    from mmrl.modalities.loading.merging import adapter_layers
    from mmrl.modalities.loading.weightless import emptied, forward_costs, on_meta, without_content

    counted = {}
    for case in ("base", "LoRA, casts of peft", "LoRA", "LoRA, merged"):
        found = []
        for layers in (2, 3):  # all further layers are alike
            config: Any = Qwen2_5_VLConfig(text_config=text | {"num_hidden_layers": layers}, vision_config=vision)
            model: Any = on_meta(partial(Qwen2_5_VLForConditionalGeneration, config), torch.bfloat16)
            if case != "base":
                Lora(rank=64, alpha=128).add_to_language_model(model, ["model.language_model"])
            for layer in adapter_layers(model):
                layer.cast_input_dtype_enabled = case == "LoRA, casts of peft"
                layer.merged_adapters = ["default"] if case == "LoRA, merged" else []
            with without_content():
                emptied(model)
                one, two = (forward_costs(partial(_steps, model, n))[2] for n in (1, 2))
            found.append(two - one)  # autocast has cast the adapter before
        counted[case] = found[0] + (text["num_hidden_layers"] - 2) * (found[1] - found[0])
    return {"model": name, "kernels_a_step": counted}


def _steps(model: Any, count: int) -> None:
    """Reads so many tokens, one after the other."""
    from transformers import DynamicCache

    cache: Any = DynamicCache(config=model.config.get_text_config())
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(count):
            model.model.language_model(
                inputs_embeds=model.get_input_embeddings()(torch.zeros(1, 1, dtype=torch.int64)),
                attention_mask=torch.ones(1, 1, 1, cache.get_seq_length() + 1, dtype=torch.bool),
                position_ids=torch.zeros(3, 1, 1, dtype=torch.int64),
                past_key_values=cache,
                use_cache=True,
            )


def main() -> None:
    """Prints one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of an older commit")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--answers", type=int, default=32, help="side by side, 8 to each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer of the random model")
    parser.add_argument("--cases", nargs="+", default=[*CASES, *OPTIONS])
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    if options.kernels:
        from gpu import sizes

        sized = sizes.QWEN25_7B
        print(json.dumps(kernels("Qwen2.5-VL-7B", sized["text_config"], sized["vision_config"])), flush=True)
        return
    with TemporaryDirectory() as folder:
        print(json.dumps({"million_weights": round(write_random(Path(folder)) / 1e6, 1)}), flush=True)
        for case in options.cases:
            base = case if case in CASES else "random, LoRA"
            against = (options.against or ROOT).resolve()
            print(json.dumps(compare(case, Path(folder), options, against, base)), flush=True)


if __name__ == "__main__":
    main()
