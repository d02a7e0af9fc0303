"""Random small judges for dry runs: they are asked as real ones are, and verdicts in the right form are added."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..networks.tiny import byte_tokenizer, randomise
from ..networks.vlm import write_tiny_vlm
from .local import LocalJudge
from .prompt_files import JudgePrompt
from .questions import Question, Reply, UnansweredError

_WORDS = ("yes", "no")
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


_READ = 2  # questions of a call that the small model itself reads: enough to see that it can


class TinyJudge:
    """A random small judge. It writes nonsense, so a verdict that depends on the question alone follows it."""

    def __init__(self, inner: LocalJudge, file: JudgePrompt) -> None:
        self._inner, self._file = inner, file

    def ask(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Reply | UnansweredError]:
        """Returns what the small model replies to the first questions, each with a made up verdict behind it."""
        if questions and questions[0].words:
            return self._inner.ask(questions, seeds)
        replies = self._inner.ask(questions[:_READ], seeds[:_READ])
        replies += [UnansweredError("it was not read")] * (len(questions) - len(replies))
        every = zip(replies, questions, seeds, strict=True)
        return [self._with_verdict(reply, question, seed) for reply, question, seed in every]

    def _with_verdict(self, reply: Reply | UnansweredError, question: Question, seed: int) -> Reply:
        written = Reply("") if isinstance(reply, UnansweredError) else reply
        said = f"{self._file.label}: {self.verdict(question, seed)}"
        return replace(written, text=f"{written.text}\n{said}" if self._file.critique else said)

    def verdict(self, question: Question, seed: int) -> str:
        """Returns a verdict in the form of the prompt, for as many criteria or samples as the question lists."""
        rng = random.Random(f"{seed} {question.digest()}")
        count = count_of(question.text, len(question.images))
        low, high = self._file.scale
        grades = [str(round(rng.uniform(low, high), 2)) for _ in range(count)]
        order = rng.sample(range(1, count + 1), count)
        return {
            "number": rng.choice(self._file.levels) if self._file.levels else grades[0],
            "yes_no": rng.choice(self._file.words),
            "rubric": f"[{', '.join(grades)}]",
            "constraints": f"[{', '.join(rng.choice(_WORDS) for _ in range(count))}]",
            "pairwise": rng.choice(self._file.words),
            "ranking": f"[{', '.join(map(str, order))}]",
            "group_scores": f"[{', '.join(grades)}]",
        }[self._file.form]


def count_of(text: str, num_images: int) -> int:
    """Returns the number of items that a question lists, 1 to n, one a line; of images where it lists none."""
    lines, count = text.split("\n"), 0
    for line in lines:
        count += line.startswith(f"{count + 1}. ")
    return count or max(num_images, 1)


def write_tiny_judge(folder: Path, seed: int, sees_images: bool) -> None:
    """Writes a random judge as transformers saves one: a LLaVA, or a Llama for texts alone."""
    if sees_images:
        write_tiny_vlm(folder, seed, _WORDS)
        return
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(["<pad>", "</s>"], eos="</s>", pad="<pad>", words=_WORDS)
    tokenizer.chat_template = _TEMPLATE
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                vocab_size=len(tokenizer),
                max_position_embeddings=8192,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
    randomise(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
