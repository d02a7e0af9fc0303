"""The interface between token policies and families of models: inputs, network and text."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from mmrl.core.data import Outputs, Prompt
from mmrl.core.weights import Weights

from ..encoding.inputs import EncodedPrompt
from ..tokens.backbone import Backbone
from ..tokens.log_probs import OutputHead
from ..tokens.token_texts import TokenTexts
from ..tokens.trace import TokenTrace

SharingMode = Literal["cache", "packed", "none"]


class TokenModel(ABC):
    """A language model with its processor."""

    @property
    @abstractmethod
    def backbone(self) -> Backbone:
        """Returns the network without its output head."""

    @property
    @abstractmethod
    def head(self) -> OutputHead:
        """Returns the output head."""

    @property
    @abstractmethod
    def banned(self) -> tuple[int, ...]:
        """Returns tokens that no answer may hold."""

    @property
    @abstractmethod
    def end_tokens(self) -> tuple[int, ...]:
        """Returns tokens that end an answer; the first is appended to answers of the data."""

    @property
    @abstractmethod
    def sharing_mode(self) -> SharingMode:
        """Returns how answers share their prompt in an update: expanded cache, one packed row, or not at all."""

    @property
    @abstractmethod
    def wanted_ways(self) -> tuple[SharingMode, ...]:
        """Returns the ways of sharing to be tried, the preferred one first; none: prompts are not to be shared."""

    @property
    @abstractmethod
    def weights(self) -> Weights:
        """Returns the trained tensors and their copies."""

    @abstractmethod
    def modules(self) -> Mapping[str, nn.Module]:
        """Returns the modules with trained weights, by name."""

    @abstractmethod
    def encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Encodes each distinct prompt once. Raises ConfigError for a prompt that cannot be read or is too long."""

    @abstractmethod
    def decode(self, tokens: list[int]) -> str:
        """Decodes an answer; special tokens stay visible."""

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """Returns the tokens of a text, without special tokens around it."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Writes the weights now in place, as other tools load them: a model's folder, or an adapter's."""

    @abstractmethod
    def running(self) -> AbstractContextManager[None]:
        """Sets precision and checkpointing around every use of the network."""

    def sampling(self) -> AbstractContextManager[None]:
        """Sets what differs where answers are sampled, inside of `running`."""
        return nullcontext()

    def completed(self, prompts: Sequence[Prompt], outputs: Outputs) -> Outputs:
        """Returns outputs [B] with what a family parses from the texts; `prompts` are those of the B samples."""
        return outputs

    def outputs_of(
        self, prompts: Sequence[Prompt], trace: TokenTrace, prompt_of: Tensor, pieces: TokenTexts
    ) -> Outputs:
        """Returns the outputs of B answers: `prompts` [B] of each, `prompt_of` [B] the place of each in the trace."""
        completions = trace.completions
        before_end = [
            [token for token in row[:length] if token not in self.end_tokens]
            for row, length in zip(completions.tokens.tolist(), completions.length.tolist(), strict=True)
        ]
        texts = tuple(self.decode(tokens) for tokens in before_end)
        ends = [("",) * (num - len(row)) for row, num in zip(before_end, completions.length.tolist(), strict=True)]
        outputs = Outputs(
            texts=texts,
            pieces=tuple(pieces(row, text) + end for row, text, end in zip(before_end, texts, ends, strict=True)),
            is_finished=completions.is_finished,
            num_tokens=completions.length,
            canvases=tuple(trace.prompts[number].canvas for number in prompt_of.tolist()),
        )
        return self.completed(prompts, outputs)

    @abstractmethod
    def networks(self) -> Sequence[nn.Module]:
        """Returns the modules that `backbone` calls."""
