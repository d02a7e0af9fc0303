"""Compares every twin of a vision-language model with its own forward pass, and writes the table of the docs.

`python scripts/vision_language_table.py` runs all families in float32, `--float64` in float64, and names after that run
only those. The numbers go into vision_language_table.json; docs/families_vision_language.md is written from them.
"""

import argparse
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from page_tables import table
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers import __version__ as version

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.modalities.encoding.inputs import EncodedPrompt
from mmrl.modalities.tiny.vision_language import TWINS, write_tiny
from mmrl.modalities.tokens.backbone import Answers
from mmrl.modalities.tokens.sampling import SamplingDistribution
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan

RESULTS = Path(__file__).with_suffix(".json")
FILE = Path(__file__).parents[1] / "docs" / "families_vision_language.md"
SEED, MAX_TOKENS = 1, 8
LENGTHS = (8, 3, 5, 1, 8, 6)  # of the answers: three to each prompt
NEEDS = {"smolvlm": "num2words"}  # packages that processors need, and mmrl does not
NAMES = {"gemma4": "`gemma4`, as E2B", "gemma4_ahead": "`gemma4`, as 31B"}
# Biases of keys that are not rotated move no softmax: their gradient is 0, and what is computed is rounding.
KEY_BIASES = ("k_proj.bias", "key.bias")
HEAD = """# Families of vision-language models, compared

Written by `python scripts/vision_language_table.py`, with `--float64` for the columns of float64, on transformers
{version}. A row is a tiny random twin of the family: the real classes of model and processor, every part, 2 to 6
layers. It answers two prompts with images of different shapes, three answers of different lengths to each; all weights
are trained.

The numbers are the largest differences from the model's own forward pass, which transformers alone loads from the same
folder: a row of prompt and answer at a time, with all that its processor returns, without padding, cache or positions.
*Rollouts* and *updates* are log-probs in nats: what the rollout recorded, and what an update computes. *Gradient* is
the largest relative difference of a trained tensor, for a weighted sum of the log-probs. For float64, casts to float32
within both, as in the norms of most models, are left out: rounding vanishes, and what remains would be an error.

Where those casts stay in, gradients in float64 differ by up to 7e-7; without them by 2e-12 at most. `granite4_vision`
alone is above 1e-4 for gradients in float32: its worst tensor, the keys of a projector's self-attention, has a gradient
of 7e-9 times the model's largest, which is less than the rounding of float32.

*Computed once* says what an update shares among a prompt's answers: `cache`, the prompt's keys and values; `packed`,
one row of prompt and answers; `none`, nothing, with the reason. A family that is refused is not trained: `mmrl check`
gives the same reason.
"""

TRIED = """## Two families that nobody had tried

Two of transformers' model types without a twin and without a relative here were written down first, and tried then.

- `aria` (queries that read patches under a mask of pixels, experts in the text) worked at the first try, with nothing
  written but its twin of 18 lines. It is a row of the table.
- `mllama` (Llama 3.2 Vision) was refused at the first try, but by an error about the sizes of two tensors. Its images
  reach the text by layers of cross-attention, and its processor makes a mask with a column for each token, which an
  answer would have to lengthen. mmrl does not do that. It now finds such columns in what any processor makes, and
  refuses the model with this reason (20 lines).
"""


@dataclass(frozen=True)
class Pixels:
    """An image of noise without a file."""

    size: tuple[int, int]  # width, height
    seed: int

    def load(self) -> Image.Image:
        generator = torch.Generator().manual_seed(self.seed)
        return Image.fromarray(
            torch.randint(256, (*self.size[::-1], 3), generator=generator, dtype=torch.uint8).numpy()
        )


PROMPTS = (
    Prompt("click the <image> box", (Pixels((60, 40), 1),)),
    Prompt("<image> what is on the left of the blue box, and what is it above?", (Pixels((40, 56), 2),)),
)


class Float64(VisionLanguage):
    """The policy with media of prompts in float64."""

    def encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Encodes prompts as the policy does."""
        return [
            replace(one, media={name: _in_float64(value) for name, value in one.media.items()})
            for one in super().encode(prompts)
        ]


def _in_float64(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def to_float64(model: Any) -> None:
    """Turns weights and buffers to float64, complex ones aside, and takes experts by plain products, which have it."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = _in_float64(tensor.data)
    model.set_experts_implementation("eager")


class NothingInFloat32(TorchFunctionMode):
    """A context in which casts to float32, as in the norms of most models, are casts to float64."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function with float64 in the place of float32."""
        if function is Tensor.float:
            return _in_float64(args[0]) if args[0].is_floating_point() else args[0].double()
        given = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return function(*(torch.float64 if value is torch.float32 else value for value in args), **given)


def compared(family: str, *, is_double: bool) -> dict[str, Any]:
    """Returns how far mmrl is from the model's own forward pass on the twin of a family, or why it is refused."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny(family, SEED, folder)
        policy = (Float64 if is_double else VisionLanguage)(model=str(folder), vision="trained")
        try:
            policy.prepare(Placement(torch.device("cpu"), torch.float32))
        except ConfigError as error:
            return {"refused": " ".join(str(error).replace(str(folder), "the twin").split())}
        model: Any = policy.modules()["model"]
        if is_double:
            to_float64(model)
        rollout = policy.rollout(PROMPTS, [AnswerPlan(3, MAX_TOKENS)] * 2, [GroupKey(1, 0, n) for n in range(2)])
        completions = rollout.trace.completions
        length = torch.minimum(completions.length, torch.tensor(LENGTHS))
        answers = Answers(rollout.prompt, completions.tokens[:, : int(length.max())], length)
        read = [prompt.tokens for prompt in rollout.trace.prompts]
        rows = [tokens[:count] for tokens, count in zip(answers.tokens, length.tolist(), strict=True)]
        own = own_model(folder, is_double=is_double)
        inputs = [processed(AutoProcessor.from_pretrained(folder), prompt) for prompt in PROMPTS]
        with NothingInFloat32() if is_double else nullcontext():
            distribution = SamplingDistribution(1.0, banned=policy.banned)
            log_prob, _ = policy.log_probs(policy.encode(PROMPTS), answers, distribution)
            (log_prob * weights_of(log_prob)).sum().backward()
            expected = by_the_model(own, inputs, rows, read, policy.banned)
        trained = {name.removeprefix("model."): one for name, one in policy.weights.parameters.items()}
        gradients = {name: parameter.grad for name, parameter in own.named_parameters() if parameter.grad is not None}
        difference, worst = largest_difference(
            {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None},
            {name: gradient for name, gradient in gradients.items() if name in trained},
        )
        way, _, reason = policy.sharing_used.partition(" ")
        recorded = completions.log_prob[:, : answers.tokens.shape[1]][answers.is_token]  # float32, as it is kept
        return {
            **({} if is_double else {"rollouts": rounded((recorded - expected).abs().max())}),
            "updates": rounded((log_prob.detach() - expected).abs().max()),
            "gradient": rounded(difference),
            "tensor": worst,
            "untrained": sum(bool(gradient.any()) for name, gradient in gradients.items() if name not in trained),
            "mean": rounded(-expected.mean()),  # near 0 a twin would be too sure to tell anything
            "sharing": way,
            "reason": reason.strip("()"),
            "language": model.config.get_text_config().model_type,
        }


def weights_of(log_probs: Tensor) -> Tensor:
    """Returns what each token counts in the sum whose gradient is compared."""
    return torch.randn(len(log_probs), generator=torch.Generator().manual_seed(0)).to(log_probs.dtype)


def own_model(folder: Path, *, is_double: bool) -> Any:
    """Returns the model as transformers loads it."""
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    if is_double:
        to_float64(model)
    return model


def by_the_model(
    model: Any,
    inputs: Sequence[Mapping[str, Tensor]],
    answers: Sequence[Tensor],
    read: Sequence[Tensor],
    banned: Sequence[int],
) -> Tensor:
    """Returns log-probs [N] of the answers' tokens by transformers alone; the gradient of their weighted sum is taken.

    inputs: what the processor makes of each prompt. read: the tokens that mmrl made of each, which must be the same.
    """
    dtype = model.get_input_embeddings().weight.dtype
    found = []
    for row, answer in enumerate(answers):
        given = dict(inputs[row // 3])
        assert torch.equal(given["input_ids"][0], read[row // 3]), "mmrl reads other tokens than the processor makes"
        width, kinds = given["input_ids"].shape[1], int(model.config.model_type == "paligemma")  # 1 is its answer
        for name in ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"):
            if name in given:
                fill = {"input_ids": answer, "attention_mask": torch.ones_like(answer)}
                more = fill.get(name, torch.full_like(answer, kinds if name == "token_type_ids" else 0))
                given[name] = torch.cat([given[name], more[None].to(given[name])], 1)
        media = {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}
        for module in model.modules():
            if "rope_deltas" in vars(module):
                module.rope_deltas = None  # of the row before
        logits = (
            model(**media, use_cache=False).logits[0, width - 1 : -1].index_fill(1, torch.tensor(banned), -torch.inf)
        )
        found.append(logits.log_softmax(-1).gather(1, answer[:, None])[:, 0])
    log_probs = torch.cat(found)
    (log_probs * weights_of(log_probs)).sum().backward()
    return log_probs.detach()


def processed(processor: Any, prompt: Prompt) -> dict[str, Tensor]:
    """Returns the tensors that a processor makes of a prompt, but for labels, which PaliGemma's makes up."""
    before, after = prompt.text.split("<image>")
    image = {"type": "image", "image": prompt.media[0].load()}
    parts: list[dict[str, Any]] = [{"type": "text", "text": before}, image, {"type": "text", "text": after}]
    content = [part for part in parts if part.get("text") != ""]
    encoded = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
    )
    return {name: value for name, value in encoded.items() if isinstance(value, Tensor) and name != "labels"}


def largest_difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[float, str]:
    """Returns the largest norm(difference) / norm over the tensors, and the tensor's name.

    A tensor with less than 1e-5 of the largest gradient counts as if it had that much.
    """
    compared = {
        name: value for name, value in expected.items() if "language_model" in name or not name.endswith(KEY_BIASES)
    }
    least = 1e-5 * max(float(value.norm()) for value in compared.values())
    errors = {
        name: float((found.get(name, torch.zeros_like(value)) - value).norm()) / max(float(value.norm()), least)
        for name, value in compared.items()
    }
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def rounded(value: Any) -> float:
    return float(f"{float(value):.1e}")


def page(results: Mapping[str, Any]) -> str:
    """Returns the text of the page."""
    rows, refused = [], []
    for family, found in results.items():
        name = NAMES.get(family, f"`{family}`")
        one, double = found.get("float32", {}), found.get("float64", {})
        if "refused" in one:
            refused.append((name, escaped(one["refused"])))
            continue
        numbers = [one.get(key) for key in ("rollouts", "updates", "gradient")]
        numbers += [double.get(key) for key in ("updates", "gradient")]
        once = f"`{one['sharing']}`" + (f": {escaped(one['reason'])}" if one["reason"] else "")
        if one["untrained"]:
            once += f"; {one['untrained']} tensors that get a gradient are not trained"
        rows.append((name, f"`{one['language']}`", *map(shown, numbers), once))
    head = ("family", "language model", "rollouts", "updates", "gradient", "updates, float64", "gradient, float64",
            "computed once")  # fmt: skip
    versions = sorted({one["transformers"] for found in results.values() for one in found.values()})
    text = f"{HEAD.format(version=', '.join(versions))}\n{len(rows)} families:\n\n{table(head, rows)}\n"
    if refused:
        text += f"\n## Refused\n\n{table(('family', 'why'), refused)}\n"
    return f"{text}\n{TRIED}"


def escaped(text: str) -> str:
    return re.sub(r"([<>|*_\[\]])", r"\\\1", text)


def shown(number: float | None) -> str:
    return "" if number is None else f"{number:.0e}" if number else "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", choices=[*TWINS, []], help="all by default")
    parser.add_argument("--float64", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for family in given.families or TWINS:
        if family in NEEDS and find_spec(NEEDS[family]) is None:
            print(f"{family}: left out, install {NEEDS[family]}")
            continue
        try:
            found = compared(family, is_double=given.float64)
        except RuntimeError as error:  # some kernels have no float64
            if not given.float64:
                raise
            found = {"failed": str(error).splitlines()[0]}
        found["transformers"] = version
        results.setdefault(family, {})["float64" if given.float64 else "float32"] = found
        print(family, found, flush=True)
        ordered = {name: results[name] for name in TWINS if name in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    FILE.write_text(page({name: results[name] for name in TWINS if name in results}), encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()
