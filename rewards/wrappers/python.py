"""A function of your own as a reward: two lines of Python, one line of a config."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import MISSING, dataclass, field
from math import inf
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.dense import DENSE, stray
from mmrl.system.user_modules import own_module

Mode = Literal["sample", "batch"]
# What a function for samples may call its parameters, and where that stands; every other name is a field of the target.
OUTPUTS = {
    "text": "texts",
    "image": "images",  # [3, H, W] in [0, 1]
    "video": "videos",  # [F, 3, H, W] in [0, 1]
    "action": "actions",
    "canvas": "canvases",
    "is_finished": "is_finished",
    "num_tokens": "num_tokens",
    "pieces": "pieces",
    "step_reward": "step_rewards",
    "outcome": "outcomes",
    "screen": "screens",  # a picture after the turn, `screen.load()`; None: the environment broke
}
ALWAYS = ("prompt", "target", "seed", "iteration")  # there for every sample


@dataclass(frozen=True)
class Python(Checked):
    """The score of a function of your own, written `module:function`: one number for each sample, or for a whole batch.

    `mode: sample`: the names of its parameters say what the function gets, and what the reward needs follows from them:
      text, image, video, action, canvas, is_finished, num_tokens, pieces, step_reward, outcome, screen: its own
      prompt: the `Prompt` (text, media, target, system). target: its target, a mapping. seed, iteration: numbers
      any other name: that field of the target; a default value stands in where something is not there
    So `def close(text, answer): return float(answer in text)` needs texts and `target.answer`, and returns a number.
    For pictures: `def dark(image): return 1 - image.mean()`; a tensor of one number is a number too.

    `mode: batch`: the function is called with the `RewardBatch` and returns B numbers, a list or a tensor [B]. Say in
    `needs` what it looks at, and in `granularity` whether it compares the samples of a group or an episode: then it
    gets these whole. The module is searched in the working folder and among installed packages.

    With `granularity` token, step (of denoising) or segment (of tokens) the function for batches returns a number for
    each decision: a list of B lists with `batch.num_decisions[b]` numbers each, or a tensor [B, K] with 0 behind them.
    `batch.outputs.pieces` are the texts of the tokens. For segments, `segments` names a function that is called with
    the batch too, and returns in the same form whether a segment ends at each token; the numbers stand at these ends,
    with 0 elsewhere. The last token of an answer always ends a segment.

    The returned values are checked: one finite number for each sample, within `range`. True and False are 1 and 0;
    None, NaN or a text are errors. A function that cannot judge a sample should raise: the sample is then left out and
    counted, and the others are judged alone. `range` is unbounded until you give both ends. With `differentiable` a
    tensor that the function returns keeps its gradient.
    """

    source: ClassVar[str] = "a function of the user's own"

    function: str  # your function, `module:function`
    mode: Mode = "sample"  # whether the function is called for each sample or for a batch
    range: tuple[float, float] = (-inf, inf)  # both ends of the score, [low, high]
    granularity: Granularity = "sample"  # what a function for batches judges
    differentiable: bool = False  # whether the returned tensor keeps its gradient
    needs: frozenset[str] = frozenset()  # beside what parameters say: images, texts, target.answer, prompt.image ...
    batch_size: Annotated[int, Field(ge=1)] | None = None  # samples at once, at most; null: any number
    segments: str | None = None  # `module:function` that says where segments end; of granularity segment

    _ends: Callable[..., Any] | None = field(init=False, repr=False, compare=False)
    _call: Callable[..., Any] = field(init=False, repr=False, compare=False)
    _parameters: dict[str, Any] = field(init=False, repr=False, compare=False)  # names, and defaults or MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.range[0] < self.range[1]:
            raise ValueError(f"range must be [low, high] with low < high, got {list(self.range)}")
        object.__setattr__(self, "_call", _imported(self.function))
        if (self.segments is None) == (self.granularity == "segment"):
            raise ValueError(f"granularity segment and `segments` go together, got {self.granularity}, {self.segments}")
        object.__setattr__(self, "_ends", None if self.segments is None else _imported(self.segments))
        parameters = _parameters(self._call, self.function) if self.mode == "sample" else {}
        object.__setattr__(self, "_parameters", parameters)
        if self.mode == "batch":
            return
        if self.granularity not in ("sample", "turn"):
            raise ValueError(f"granularity {self.granularity} needs mode batch: a function for samples sees one alone")
        needed = {_need(name) for name, default in parameters.items() if default is MISSING and name not in ALWAYS}
        object.__setattr__(self, "needs", self.needs | needed)

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns what the names of the parameters tell: whether the function reads the iteration or the seed."""
        return RewardDeclaration(
            follows_iteration="iteration" in self._parameters,
            is_changing=not {"seed", "iteration"}.isdisjoint(self._parameters),
        )

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, or [B, K].

        Raises ValueError where the function returns anything else, and what the function raises.
        """
        is_number = None  # None: everywhere
        if self.granularity in DENSE:
            values = self._numbers_of_decisions(self._call(batch), batch, self.function)
            is_number = batch.is_decision if self._ends is None else self.ends(batch)
            if (stray_row := stray(values, is_number.to(values.device))) is not None:
                raise ValueError(f"{self.function} gave sample {stray_row} of the batch numbers where there must be 0")
        elif self.mode == "batch":
            values = self._numbers_of_batch(self._call(batch), len(batch))
        else:
            numbers = [self._number(self._call(**self._arguments(batch, row)), batch, row) for row in range(len(batch))]
            values = torch.stack(numbers) if numbers else torch.zeros(0)
        low, high = self.range
        outside = ~((values >= low) & (values <= high) & values.isfinite())
        if is_number is not None:
            outside &= is_number.to(outside.device)
        if outside.any():
            row = int(outside.nonzero()[0, 0])
            raise ValueError(
                f"{self.function} gave {float(values[outside][0])} for {batch.prompts[row].text!r};"
                f" allowed are finite numbers from {low:g} to {high:g}, its range"
            )
        return values if self.differentiable else values.detach()

    def ends(self, batch: RewardBatch) -> Tensor:
        """Returns [B, K] bool: where segments end. Raises ValueError where the function returns anything else."""
        assert self._ends is not None and self.segments is not None, "only segments have ends"
        ends = self._numbers_of_decisions(self._ends(batch), batch, self.segments)
        if not ((ends == 0) | (ends == 1)).all():
            raise ValueError(f"{self.segments} must say true or false of each token, got {_shown(ends)}")
        return ends.bool()

    def _arguments(self, batch: RewardBatch, row: int) -> dict[str, Any]:
        """Returns the arguments of the function for one sample; those that are not there keep their defaults."""
        prompt = batch.prompts[row]
        there = {"prompt": prompt, "target": prompt.target, "seed": batch.seeds[row], "iteration": batch.iteration}
        arguments = {}
        for name, default in self._parameters.items():
            if name in ALWAYS:
                arguments[name] = deepcopy(dict(prompt.target)) if name == "target" else there[name]
            elif name in OUTPUTS and getattr(batch.outputs, OUTPUTS[name]) is not None:
                arguments[name] = _one(getattr(batch.outputs, OUTPUTS[name]), row)
            elif name not in OUTPUTS and name in prompt.target:
                arguments[name] = deepcopy(prompt.target[name])
            elif default is MISSING:
                raise ValueError(
                    f"{self.function} wants {name!r}, and there is none for {prompt.text!r}: not among what the policy"
                    f" makes, nor in the target, which has {', '.join(prompt.target) or 'nothing'}"
                )
        return arguments

    def _number(self, value: Any, batch: RewardBatch, row: int) -> Tensor:
        """Returns the result of the function for one sample as a tensor without dimensions."""
        if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
            return value.reshape(()).float().cpu()  # beside numbers that are plain ones
        number = value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value  # numpy's
        if isinstance(number, int | float):
            is_huge = isinstance(number, int) and abs(number) > 2**100  # floats of such numbers overflow
            return torch.tensor(inf if is_huge else float(number))
        raise ValueError(
            f"{self.function} returned {_shown(value)} for {batch.prompts[row].text!r}; a score is one number"
        )

    def _numbers_of_decisions(self, values: Any, batch: RewardBatch, function: str) -> Tensor:
        """Returns the numbers of a function for the decisions of B samples as a tensor [B, K], padded with 0."""
        there = batch.is_decision
        if isinstance(values, Tensor):
            if values.shape != there.shape or values.is_complex():
                raise ValueError(f"{function} returned numbers {list(values.shape)}; allowed are {list(there.shape)}")
            return values.float()
        counts = there.sum(1).tolist()
        if not isinstance(values, list | tuple) or [_length(row) for row in values] != counts:
            raise ValueError(f"{function} returned {_shown(values)}; allowed are lists of {_shown(counts)} numbers")
        numbers = torch.zeros(there.shape)
        for row, own in enumerate(values):
            try:
                numbers[row, : counts[row]] = torch.as_tensor(own, dtype=torch.float32)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(f"{function} returned {_shown(own)} for sample {row}; a score is a number") from error
        return numbers

    def _numbers_of_batch(self, values: Any, count: int) -> Tensor:
        """Returns the result of the function for B samples as a tensor [B]."""
        if not isinstance(values, Tensor):
            try:
                values = torch.as_tensor(values, dtype=torch.float32)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"{self.function} returned {_shown(values)}; a score is one number for each sample"
                ) from error
        if values.shape != (count,) or values.is_complex():
            # not a failure, after which samples are judged alone: a list of one number then looks right
            raise ConfigError(
                f"{self.function} returned numbers of shape {list(values.shape)} for a batch of {count} samples;"
                f" allowed is [{count}]"
            )
        numbers: Tensor = values.float()
        return numbers


def _imported(function: str) -> Callable[..., Any]:
    """Imports the function `module:function`; raises ConfigError where there is none."""
    module_name, _, name = function.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"function must be written module:function, such as my_rewards:brightness, got {function!r}")
    module = own_module(module_name, f"function {function!r}")
    imported = getattr(module, name, None)
    if not callable(imported):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        raise ConfigError(f"{module_name} has no function {name!r}; its functions are {', '.join(functions) or 'none'}")
    if inspect.iscoroutinefunction(imported) or inspect.isgeneratorfunction(imported):
        raise ConfigError(f"function {function!r} is asynchronous or a generator; allowed is one that returns")
    checked: Callable[..., Any] = imported
    return checked


def _parameters(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Returns the names of the parameters, with their defaults or MISSING; raises ConfigError for unnamed ones."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"function {name!r} does not say what its parameters are: write it in Python") from error
    unnamed = [str(one) for one in parameters if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if unnamed or not parameters:
        raise ConfigError(
            f"function {name!r} must name what it wants, such as (text, answer), got ({', '.join(unnamed)});"
            f" known are {', '.join((*OUTPUTS, *ALWAYS))}, and every field of the target"
        )
    return {one.name: MISSING if one.default is one.empty else one.default for one in parameters}


def _need(name: str) -> str:
    """Returns what a parameter without a default needs, in the words of `Reward.needs`."""
    return OUTPUTS.get(name, f"target.{name}")


def _one(values: Any, row: int) -> Any:
    """Returns one sample's part: a tensor for media, else a plain value; a copy that the function may change."""
    value = values[row]
    if isinstance(value, Tensor):
        return value.item() if value.ndim == 0 else value.clone()
    return value


def _length(row: Any) -> int | None:
    return len(row) if hasattr(row, "__len__") else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
