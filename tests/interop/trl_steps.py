"""Two steps of TRL's GRPOTrainer with the reward functions of docs/interop.md; prints its logs as JSON.

Run by test_trl.py, in an environment that holds TRL: `python trl_steps.py GUIDE FOLDER`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # not installed here

SPECIAL = ("<pad>", "<end>")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and two special ones."""
    letters = (*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[1])


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def reward_functions(guide: Path) -> list[Any]:
    """What the guide's block about TRL makes."""
    blocks = re.findall(r"^```python\n(.*?)^```$", guide.read_text(encoding="utf-8"), re.M | re.S)
    names: dict[str, Any] = {}
    exec(next(block for block in blocks if "interop.trl" in block), names)
    found: list[Any] = names["reward_funcs"]
    return found


def main(guide: Path, folder: Path) -> None:
    tokenizer = byte_tokenizer()
    trainer = GRPOTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        reward_funcs=reward_functions(guide),
        train_dataset=Dataset.from_list([{"prompt": f"{n} + 1?", "solution": str(n + 1)} for n in range(4)]),
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=2,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
        ),
    )
    trainer.train()
    print(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
