"""Policies that act on a screenshot with mouse and keyboard: a vision-language model whose answers are actions."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Outputs, Prompt
from mmrl.parsing.actions.action import Action, Kind
from mmrl.parsing.actions.dialect import Dialect
from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import UNKNOWN_UNIT, Canvas, resized_size

from .encoding.inputs import EncodedPrompt, called
from .language.usage import screen
from .vision_language import VisionLanguage


@dataclass(kw_only=True)
class Gui(VisionLanguage):
    """A vision-language model whose answers are actions on the screenshot that is the prompt's first image.

    The outputs of a rollout hold an action for each answer, in pixels of the original screenshot, None where the answer
    is not exactly one action that is allowed.
    """

    makes: ClassVar[frozenset[str]] = VisionLanguage.makes | {"actions"}

    # How the model writes actions: `qwen` (tool calls in JSON), `ui_tars`, `gui_r1`, `ui_r1`, `agentcpm`, `pyautogui`
    # (calls) or `plain` (a point or a box).
    dialect: DialectName
    # Actions that the model may take, such as `[click, type]`; any other counts as not understood. null: all of the
    # dialect.
    actions: tuple[Kind, ...] | None = None
    # Where the instructions stand, which name the dialect, the size of the screen in the model's unit of coordinates,
    # and the actions allowed: behind the `system` message, before the `prompt`, or nowhere (`none`).
    instructions: Literal["system", "prompt", "none"] = "system"

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for actions that the dialect does not have."""
        super().__post_init__()
        known = DIALECTS[self.dialect].vocabulary
        if self.actions is not None and (not self.actions or set(self.actions) - set(known)):
            unknown = ", ".join(kind for kind in self.actions if kind not in known)
            raise ValueError(
                f"actions must be some of those that dialect {self.dialect!r} has, {', '.join(known)}; got "
                f"{unknown or 'none'}"
            )

    def _set_up(self, processor: Any, placement: Placement) -> None:
        super()._set_up(processor, placement)
        if self.encoder.convention is None:
            raise ConfigError(UNKNOWN_UNIT)

    def encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Encodes each distinct prompt once, with the instructions.

        Raises ConfigError for a prompt that cannot be read, is too long, or has no screenshot.
        """
        for prompt in prompts:
            if not prompt.media:
                raise ConfigError(_without_screenshot(prompt))
        if self.instructions == "none":
            return super().encode(prompts)
        screens = [self._screen(prompt) for prompt in prompts]
        instructed = [self._instructed(prompt, screen) for prompt, screen in zip(prompts, screens, strict=True)]
        encoded = super().encode(instructed)
        assert [one.canvas for one in encoded] == screens, "the prompt must state the size that the model sees"
        return encoded

    def prefetch(self, prompts: Sequence[Prompt]) -> None:
        """Begins to decode and encode prompts with the instructions; what is wrong with one, `encode` says."""
        if self.encoder.workers is None or self.instructions == "none":
            super().prefetch(prompts)
            return
        instructed = []
        for prompt in prompts:
            with suppress(ConfigError):  # a screenshot that cannot be read, or resized
                if prompt.media:
                    instructed.append(self._instructed(prompt, self._screen(prompt)))
        super().prefetch(instructed)

    def refusal(self, prompt: Prompt) -> str | None:
        """Returns why a prompt cannot be read, by its texts and the headers of its media; None where it can be.

        A prompt without a screenshot cannot be.
        """
        return super().refusal(prompt) if prompt.media else _without_screenshot(prompt)

    def completed(self, prompts: Sequence[Prompt], outputs: Outputs) -> Outputs:
        """Returns the outputs with the actions that their texts spell."""
        outputs = super().completed(prompts, outputs)
        assert outputs.texts is not None and outputs.canvases is not None, "a rollout of answers about screenshots"
        return replace(outputs, actions=tuple(map(self.action, outputs.texts, outputs.canvases)))

    def action(self, text: str, canvas: Canvas | None) -> Action | None:
        """Returns the one allowed action that a text spells; None where it is not understood."""
        if canvas is None:
            return None
        try:
            action = self._dialect.parse(text, canvas)
        except ParseError:
            return None
        return action if self.actions is None or action.kind in self.actions else None

    def with_instructions(self, prompt: Prompt) -> Prompt:
        return prompt if self.instructions == "none" else self._instructed(prompt, screen(self.encoder.convention))

    @property
    def _dialect(self) -> Dialect:
        return DIALECTS[self.dialect]

    def _instructed(self, prompt: Prompt, screen: Canvas) -> Prompt:
        """Returns the prompt with the instructions for a screen."""
        words = self._dialect.prompt(screen)
        if self.actions is not None and set(self.actions) != set(self._dialect.vocabulary):
            words += f" Only these actions are allowed: {', '.join(kind.replace('_', ' ') for kind in self.actions)}."
        if self.instructions == "prompt":
            return replace(prompt, text=f"{words}\n\n{prompt.text}")
        own = prompt.system if prompt.system is not None else self.system_prompt
        return replace(prompt, system=f"{own}\n\n{words}" if own else words)

    def _screen(self, prompt: Prompt) -> Canvas:
        """Returns the screenshot's canvas, which the text of the prompt names before the processor resizes the image.

        Raises ConfigError for a screenshot that cannot be resized.
        """
        width, height = prompt.media[0].size
        images, resized = self.encoder.processor.image_processor, (width, height)
        if hasattr(images, "merge_size"):  # the families with a pixel budget
            factor, size = images.patch_size * images.merge_size, images.size
            least, most = size["shortest_edge"], size["longest_edge"]
            try:
                resized = resized_size(width, height, factor=factor, min_pixels=least, max_pixels=most)
            except ValueError as error:
                raise ConfigError(f"{called(prompt)}: {error}") from error
        return Canvas((width, height), resized, self.encoder.convention)


def _without_screenshot(prompt: Prompt) -> str:
    return f"{called(prompt)} has no screenshot; modality 'gui' needs one in every prompt"
