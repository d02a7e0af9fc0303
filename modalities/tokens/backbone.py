"""The backbone of a transformers image-text model: hidden states, with positions always passed explicitly."""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..encoding.inputs import Axes, EncodedPrompt, PromptBatch, Side, join_media, pad_rows
from ..encoding.network import network_of
from ..encoding.tower import Tower
from .attention import attention_of

# the kinds of the token that sees and of the token seen, and whether both stand in one run of their kind
Pairs = frozenset[tuple[int, int, bool]]


@dataclass(frozen=True)
class Sight:
    """The tokens of a prompt that a layer lets see each other beyond the causal mask and its window."""

    ahead: Pairs = frozenset()  # the later one is seen
    behind: Pairs = frozenset()  # the earlier one is seen, however far the window reaches


ONE_IMAGE: Pairs = frozenset({(1, 1, True)})


@dataclass(frozen=True)
class Answers:
    """n answers to P prompts, right-padded; or n spans of answers, each with all tokens before it.

    On the host, where rows are packed and places are found; on a device each of these would be a read of it.
    """

    prompt: Tensor  # [n] int64: index into the prompts
    tokens: Tensor  # [n, T] int64
    length: Tensor  # [n] int64, at least 1
    start: Tensor | None = None  # [n] int64: how many tokens stand before the span; None: none
    name: Tensor | None = None  # [n, T] int64: tokens with one name are the same node of a tree; None: all differ

    @property
    def is_token(self) -> Tensor:
        """Returns [n, T] bool: the tokens of the answers or spans, without padding and tokens before."""
        column = torch.arange(self.tokens.shape[1], device=self.length.device)
        is_there = column < self.length[:, None]
        return is_there if self.start is None else is_there & (column >= self.start[:, None])

    def of_tokens(self, states: Tensor) -> Tensor:
        """Returns [N, H]: of states [n, T, H] on any device those of the tokens, answer by answer."""
        places = self.is_token.flatten().nonzero()[:, 0].to(states.device)
        return states.flatten(0, 1)[places]


def answers_to_each(rows: Sequence[Tensor], num_prompts: int, device: torch.device) -> Answers:
    """Returns the same answers to each prompt; rows: the tokens [T_i] of each answer."""
    prompt = torch.arange(num_prompts).repeat_interleave(len(rows))
    length = torch.tensor([len(row) for row in rows]).repeat(num_prompts)
    tokens = pad_rows(rows, 0, "right").repeat(num_prompts, 1)
    return Answers(prompt.to(device), tokens.to(device), length.to(device))


@dataclass(frozen=True)
class Backbone:
    """A model without its output head."""

    model: Any
    pad_token: int
    kinds: str | None = None  # the name of the network's argument with the kinds of tokens; None: it takes none
    answer_kind: int = 0  # of the tokens of an answer, so that no token sees those behind it
    sight: Mapping[str, Sight] = field(default_factory=dict)  # by kind of layer, where it is more than causal
    axes: Axes = field(default_factory=dict)  # along which the media of prompts are joined, by name
    one_at_a_time: bool = False  # prompts cannot stand in one batch
    tower: Tower | None = None  # makes the features of media ahead; None: the network makes them itself

    @property
    def device(self) -> torch.device:
        """Returns the device of the network."""
        return self.model.device  # type: ignore[no-any-return]

    @property
    def network(self) -> Any:
        """Returns the network, which has no output head."""
        return network_of(self.model)

    def batch(self, prompts: Sequence[EncodedPrompt], side: Side = "left") -> PromptBatch:
        """Joins prompts to a batch on the network's device."""
        return PromptBatch.of(prompts, self.device, self.pad_token, side, self.media(prompts))

    def media(self, prompts: Sequence[EncodedPrompt]) -> dict[str, Any]:
        """Returns the network's arguments for the media of prompts, in their order: tensors or features."""
        if self.tower is not None:
            return self.tower(prompts)
        joined = join_media([prompt.media for prompt in prompts], self.axes)
        return {name: tensor.to(self.device) for name, tensor in joined.items()}

    def hidden(
        self,
        tokens: Tensor,
        mask: Any,
        positions: Tensor,
        *,
        media: Mapping[str, Any] | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """Returns the last hidden states [n, T, H] of tokens [n, T] at positions [A, n, T], without a cache.

        `mask`: [n, T], or, where the rows are trees, [n, 1, T, T] or a BlockMask, one for each kind of layer.
        """
        extra = {self.kinds: token_types} if self.kinds is not None and token_types is not None else {}
        output = self.network(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=position_ids(positions),
            use_cache=False,
            **extra,
            **(media or {}),
        )
        return output.last_hidden_state  # type: ignore[no-any-return]

    def prefill(self, prompts: PromptBatch) -> tuple[Tensor, Any]:
        """Returns hidden states [P, H] of the prompts' last tokens, and the cache from which answers continue."""
        from transformers import DynamicCache

        extra = {} if self.kinds is None else {self.kinds: prompts.token_types}
        cache = DynamicCache(config=self.model.config.get_text_config())  # some networks make none by themselves
        output = self.network(
            input_ids=prompts.tokens,
            attention_mask=prompts.mask if prompts.is_padded or not self.goes_without_a_mask else None,
            position_ids=position_ids(prompts.positions),
            past_key_values=cache,
            use_cache=True,
            **extra,
            **prompts.media,
        )
        rows = torch.arange(len(prompts.last), device=self.device)
        return output.last_hidden_state[rows, prompts.last], cache

    def continue_from_cache(self, tokens: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> Tensor:
        """Returns hidden states [n, k, H] of the next tokens [n, k]; the cache of L tokens grows by k.

        `mask`: [n, L + k], or as `unread_mask` returns it.
        """
        output = self.network(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=position_ids(positions),
            past_key_values=cache,
            use_cache=True,
        )
        return output.last_hidden_state  # type: ignore[no-any-return]

    def unread_mask(self, mask: Tensor, *, is_padded: bool) -> Tensor | None:
        """Returns the mask [n, L] of one more token in a form that transformers does not read, where there is such.

        transformers reads a mask of two axes to leave it out where nothing is padded, or makes of it the mask of four
        axes that is returned here. Layers with a window shorten a padded mask, and those with a state multiply by it:
        for them it stays as it is, and so it does for attention that takes no mask of four axes of type bool.
        """
        if not is_padded and self.goes_without_a_mask:
            return None
        if self.goes_by_the_mask and attention_of(self.model) == "sdpa":
            return mask[:, None, None].bool()
        return mask

    def answer_positions(self, start: Tensor, count: int, first: int = 0) -> Tensor:
        """Returns positions [A, n, count] of tokens first .. first + count - 1 of answers that start at `start` [n]."""
        positions = start[:, None] + first + torch.arange(count, device=start.device)
        return positions.expand(self.num_axes, -1, -1)

    @property
    def goes_by_the_mask(self) -> bool:
        """Returns whether hidden tokens may stand anywhere: no layer has a window or a state that counts them."""
        return self._kinds_of_layers <= {"full_attention"}

    @property
    def goes_without_a_mask(self) -> bool:
        """Returns whether all layers are of attention, which takes no mask for one that hides nothing."""
        return self._kinds_of_layers <= {"full_attention", "sliding_attention"}

    @property
    def _kinds_of_layers(self) -> set[str]:
        return set(getattr(self.model.config.get_text_config(), "layer_types", None) or ())

    @property
    def num_axes(self) -> int:
        """Returns the number of axes of a position: 3 for M-RoPE (Qwen2-VL 2024, arXiv 2409.12191), else 1."""
        return 3 if hasattr(self.network, "get_rope_index") else 1


def expand(cache: Any, rows: Tensor) -> Any:
    """Returns a cache whose row n is row `rows[n]` of the given cache, which is not changed; gradients flow."""
    copied = copy.copy(cache)
    copied.layers = [copied_layer(layer) for layer in cache.layers]
    copied.reorder_cache(rows)
    return copied


def copied_layer(layer: Any) -> Any:
    """Returns a layer of a cache with the same tensors and dictionaries of its own (of linear attention's states).

    Where a gradient will flow, a state is replaced: transformers writes the next one into it, and the backward pass
    still needs the one before.
    """
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    copied = copy.copy(layer)
    vars(copied).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})
    if isinstance(layer, LinearAttentionCacheLayerMixin) and torch.is_grad_enabled():
        vars(copied)["update_recurrent_state"] = functools.partial(_replaced, copied)
    return copied


def _replaced(layer: Any, recurrent_states: Tensor, state_idx: int = 0, **_given: Any) -> Tensor:
    """Does what `update_recurrent_state` of a layer of transformers does, without writing into the state before."""
    layer.recurrent_states[state_idx] = recurrent_states
    layer.is_recurrent_states_initialized[state_idx] = True
    return recurrent_states


def position_ids(positions: Tensor) -> Tensor:
    """Returns positions [A, n, T] as a network takes them: [n, T] where there is one axis."""
    return positions if len(positions) > 1 else positions[0]
