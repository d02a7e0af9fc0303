"""One update of a vision-language model against loops that share nothing, on the same model, prompts and answers.

    python benchmarks/vlm_update.py --pairs 3 --trl /tmp/trl/bin/python

A tiny Qwen2.5-VL with random weights, all of them trained: P prompts of 1,024 tokens with an image each, G answers of
64 tokens, micro-batches of one group. mmrl runs its own policy and updater. Against it: a plain batch loop, the same
loop row by row (both in `_vlm.py`, both end with mmrl's gradient), and TRL's GRPOTrainer in its own environment
(`python -m venv /tmp/trl && /tmp/trl/bin/pip install trl torchvision`), its generation apart.
`bound` is what the counts of tokens alone would give. Bars: update >= 6x over the faster plain loop, >= 7x over the
plain batch and TRL; rollout >= 3x over `generate` on the repeated batch, not slower than `num_return_sequences`.
Memory is measured by `vlm_memory.py`.
"""

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from _common import Seconds, argument_parser, emit, in_turns, median_ratio, median_seconds
from _vlm import Plain, make_prompts, write_model
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.losses.grpo import Grpo
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan
from mmrl.training.processes import Processes
from mmrl.training.update import Updater

PATCHES, PROMPT = 3844, 1024  # of an image; tokens of a prompt, 961 of them the image's
WORDS = (" red", " blue", " green", " box", " left", " right")  # one token each
AGAINST = ("plain", "rows", "trl", "generate", "return_sequences")


class Watch:
    """Seconds since it was made: on the clock, and of this process's work, which a busy machine stretches less."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __call__(self, phase: str) -> Seconds:
        return {phase: time.perf_counter() - self._start[0], f"{phase}_cpu": time.process_time() - self._start[1]}


@dataclass
class Mmrl:
    """Times the policy and the updater."""

    folder: Path
    num_prompts: int
    group_size: int
    num_tokens: int
    lora: Lora | None = None
    checkpointing: bool = False
    policy: VisionLanguage = field(init=False)
    prompts: list[Prompt] = field(init=False)

    def __post_init__(self) -> None:
        engine = Processes()
        vision: Any = "trained" if self.lora is None else "frozen"
        self.policy = VisionLanguage(
            model=str(self.folder), vision=vision, lora=self.lora, gradient_checkpointing=self.checkpointing
        )
        self.policy.prepare(engine.placement)
        self.updater = Updater(self.policy, Grpo(clip_low=0.2, clip_high=0.2), engine, self.group_size)
        self.prompts = make_prompts(self.policy, self.num_prompts, PROMPT)

    @property
    def advantages(self) -> Tensor:
        """[P * G] another one for each member of a group."""
        return torch.linspace(-1, 1, self.group_size).repeat(self.num_prompts)

    @property
    def answers(self) -> Tensor:
        """[P * G, K]"""
        return self.sampled.trace.completions.tokens  # type: ignore[no-any-return]

    @cached_property
    def sampled(self) -> Rollout:
        """Answers of random words, an end token behind each."""
        count, chance = self.group_size * self.num_prompts, random.Random(0)
        texts = ("".join(chance.choices(WORDS, k=self.num_tokens - 1)) for _ in range(count))
        prompts = [prompt for prompt in self.prompts for _ in range(self.group_size)]
        return self.policy.offline(prompts, Outputs(texts=tuple(texts)), [GroupKey(0, 0, n) for n in range(count)])

    def rollout(self) -> Seconds:
        plans = [AnswerPlan(self.group_size, self.num_tokens)] * self.num_prompts
        watch = Watch()
        sampled = self.policy.rollout(self.prompts, plans, [GroupKey(0, 0, n) for n in range(self.num_prompts)])
        seconds = watch("rollout")
        assert sampled.trace.completions.length.eq(self.num_tokens).all(), "an answer ended early"
        return seconds

    def update(self) -> Seconds:
        for parameter in self.policy.weights.parameters.values():
            parameter.grad = None
        sampled, worth = self.sampled, self.advantages
        batch = LossBatch(worth[:, None], torch.ones(len(worth), 1), sampled.group, worth)
        watch = Watch()
        views = self.updater.loss.views(sampled, torch.arange(len(worth)), GroupKey(0, 0, 0))
        self.updater.accumulate(sampled, views, batch, "itself")
        return watch("update")


@dataclass
class PlainUpdate:
    """Times a plain loop on mmrl's answers."""

    plain: Plain
    mmrl: Mmrl
    micro_batch: int

    def __call__(self) -> Seconds:
        self.plain.model.zero_grad()
        watch = Watch()
        self.plain.backward(self.mmrl.answers, self.mmrl.advantages, self.micro_batch)
        return watch("update")

    def gradient_difference(self) -> float:
        """norm(difference) / norm of the last gradients of both sides."""
        theirs = dict(self.plain.model.named_parameters())
        ours = self.mmrl.policy.weights.parameters
        pairs = [(p.grad, theirs[name.removeprefix("model.")].grad) for name, p in ours.items()]
        one, other = (torch.cat([g.flatten() for g in side if g is not None]) for side in zip(*pairs, strict=True))
        return float((one - other).norm() / other.norm())


@dataclass
class Trl:
    """TRL's trainer in a process of its own, which makes one update when it is told to."""

    python: str
    mmrl: Mmrl
    threads: int

    def __post_init__(self) -> None:
        folder, mmrl = self.mmrl.folder / "trl", self.mmrl
        folder.mkdir()
        for number, prompt in enumerate(mmrl.prompts):
            prompt.media[0].load().save(folder / f"{number}.png")
        (folder / "prompts.json").write_text(json.dumps([prompt.text for prompt in mmrl.prompts]), encoding="utf-8")
        script = Path(__file__).with_name("_trl_update.py")
        sizes = [mmrl.group_size, mmrl.num_tokens, self.threads]
        command = [self.python, str(script), str(mmrl.folder), *map(str, sizes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self) -> Seconds:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        raise RuntimeError("TRL's process has ended; its errors are above")


def bound(group_size: int, num_tokens: int) -> dict[str, float]:
    """What sharing saves by the number of tokens through the language model, and with the tower's patches."""
    ours, plain = PROMPT + group_size * num_tokens, group_size * (PROMPT + num_tokens)
    with_patches = (plain + group_size * PATCHES) / (ours + PATCHES)
    return {"language": round(plain / ours, 2), "vision": float(group_size), "both": round(with_patches, 2)}


def measure(against: str, options: argparse.Namespace, folder: Path) -> None:
    """One comparison: its pairs, its line."""
    is_rollout = against in ("generate", "return_sequences")
    write_model(folder, is_endless=is_rollout)
    sizes = {"num_prompts": options.prompts, "group_size": options.group_size, "num_tokens": options.tokens}
    mmrl = Mmrl(folder, **sizes)
    found: dict[str, Any] = {}
    if against == "trl":
        other: Callable[[], Seconds] = Trl(options.trl, mmrl, options.threads)
    else:
        plain = Plain.of(mmrl.policy, folder, mmrl.prompts)
        if is_rollout:
            other = partial(generation, plain, mmrl, is_repeated=against == "generate")
        else:
            other = PlainUpdate(plain, mmrl, options.group_size if against == "plain" else 1)
    phase = "rollout" if is_rollout else "update"
    pairs = in_turns(other, mmrl.rollout if is_rollout else mmrl.update, options.pairs)
    if isinstance(other, PlainUpdate):
        found["gradient_difference"] = other.gradient_difference()
    emit(
        "vlm_update",
        against=against,
        pairs=options.pairs,
        **sizes,
        **{f"speedup_{name}": round(median_ratio(pairs, name), 2) for name in (phase, f"{phase}_cpu")},
        bound=bound(options.group_size, options.tokens),
        seconds_mmrl=median_seconds([second for _, second in pairs]),
        seconds_other=median_seconds([first for first, _ in pairs]),
        **found,
    )


def generation(plain: Plain, mmrl: Mmrl, *, is_repeated: bool) -> Seconds:
    watch = Watch()
    plain.generate(mmrl.group_size, mmrl.num_tokens, is_repeated=is_repeated)
    return watch("rollout")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--against", nargs="*", choices=AGAINST, default=AGAINST)
    parser.add_argument("--trl", help="python of an environment that has TRL; without it TRL is left out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for against in options.against:
        if against != "trl" or options.trl:
            with tempfile.TemporaryDirectory() as folder:
                measure(against, options, Path(folder))


if __name__ == "__main__":
    main()
