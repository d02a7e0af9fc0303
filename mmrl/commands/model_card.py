"""The model card of an export: the base model, the training, and the code that loads and uses the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl.assembly.compatibility import final_weights
from mmrl.core.config import Plugin, dump_yaml, label_of
from mmrl.core.contracts import Loadable, Usage
from mmrl.core.data import Prompt, WeightsName
from mmrl.core.keys import GroupKey
from mmrl.core.lab_models import lab_of
from mmrl.run_directory.start import config_name
from mmrl.system.versions import version_of
from mmrl.training.trainer import Trainer


def write_card(trainer: Trainer, run: Path, weights: WeightsName, folder: Path) -> None:
    """Writes README.md into the folder of an export; its head is what the hub of Hugging Face reads.

    `run`: the run directory. `weights`: the copy that was exported.
    """
    usage = _usage(trainer)
    head = dump_yaml(_head(trainer, usage))
    parts = [f"---\n{head}---", f"# {_text(run.resolve().name)}", _about(trainer, run, weights, usage)]
    if usage is not None:
        is_of_lab = usage.is_adapter and lab_of(trainer.config.modality) is not None
        first = "from mmrl import labs  # the base model comes with mmrl\n\n" if is_of_lab else ""
        parts += ["## Use", f"```python\n{first}{usage.code}```", *_needed_images(usage), *usage.notes]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8", errors="backslashreplace")


def _usage(trainer: Trainer) -> Usage | None:
    """Returns how the export is used, with an example of the run's own prompts; None for a policy that has no usage."""
    if not isinstance(trainer.policy, Loadable):
        return None
    evaluator = trainer.evaluator
    prompt: Prompt = trainer.collector.prompts.sets[0][0] if evaluator is None else evaluator.prompts[0]
    sampler = trainer.collector.sampler if evaluator is None else evaluator.sampler
    count = trainer.config.group_size if evaluator is None else evaluator.samples_per_prompt
    plan = sampler.plan(trainer.policy, GroupKey(0, 0, 0), count)
    model = _model(trainer)
    lab = lab_of(trainer.config.modality)
    base = repr(model) if lab is None else f"labs.checkpoint({lab!r})"
    if _is_local(model):  # the code runs in another folder
        base = repr(str(Path(model).expanduser().absolute()))
    return trainer.policy.usage(prompt, plan, base)


def _needed_images(usage: Usage) -> list[str]:
    """Returns a sentence on the condition images that the code loads; none where it loads none."""
    return [f"Put images of your own beside the code: {', '.join(usage.images)}."] if usage.images else []


def _model(trainer: Trainer) -> str:
    return str(trainer.config.modality.get("model", ""))


def _is_local(model: str) -> bool:
    """Returns whether a model is a folder of this machine, as `from_pretrained` takes it."""
    return Path(model).expanduser().is_dir() or model.startswith((".", "/", "~"))


def _head(trainer: Trainer, usage: Usage | None) -> dict[str, Any]:
    """Returns the metadata that the hub reads; a base model only where it is one of the hub's."""
    head: dict[str, Any] = {} if usage is None else {"library_name": usage.library, "pipeline_tag": usage.task}
    model = _model(trainer)
    if model.count("/") == 1 and not _is_local(model):
        head["base_model"] = model
    lora = ["lora"] if usage is not None and usage.is_adapter else []
    return {**head, "tags": ["mmrl", "reinforcement-learning", *lora]}


def _about(trainer: Trainer, run: Path, weights: WeightsName, usage: Usage | None) -> str:
    """Returns a table of where the weights come from."""
    config, progress, model = trainer.config, trainer.progress, _model(trainer)
    lab = lab_of(config.modality)
    shown = model if lab is None else f"the lab {lab} of mmrl"
    if _is_local(model):
        shown = Path(model).name  # the rest is about a machine
    name = config_name(run)
    rows = {
        "base model": shown,
        "trained": usage.trained if usage is not None else None,
        "config": name,
        "algorithm": f"loss {config.loss['name']}, advantage {config.advantage['name']}, "
        f"sampler {config.sampler['name']}",
        "rewards": ", ".join(map(_reward, config.rewards)),
        "iterations": f"{progress.iteration}, weights: {weights}",
        **_held_out(trainer, weights),
        "mmrl": version_of("mmrl"),
    }
    lines = [f"| {_text(name)} | {_text(value)} |" for name, value in rows.items() if value]
    return "\n".join(["Trained by its rewards, with mmrl.", "", "| | |", "|---|---|", *lines])


def _reward(settings: Plugin) -> str:
    weight = settings.get("weight", 1.0)
    return f"{label_of(settings)}" + ("" if weight == 1 else f" (weight {weight})")


def _held_out(trainer: Trainer, weights: WeightsName) -> Mapping[str, str]:
    """Returns the scores before training and of the last evaluation, where the same weights were evaluated."""
    progress, evaluator = trainer.progress, trainer.evaluator
    if evaluator is None or progress.before is None or progress.latest is None or not progress.evaluated:
        return {}
    if weights != final_weights(trainer.config):
        return {}
    at = "" if progress.evaluated == progress.iteration else f" (at iteration {progress.evaluated})"
    name = " + ".join(term.name for term in evaluator.scorer.terms)
    scores = {f"held-out {name}": f"{progress.before:.3f} before, {progress.latest:.3f} after{at}"}
    for other, before in progress.others_before.items():
        scores[f"held-out {name}, {other}"] = f"{before:.3f} before, {progress.others_latest[other]:.3f} after{at}"
    return scores


def _text(value: str) -> str:
    """Returns a text escaped for a cell of a Markdown table."""
    return " ".join(value.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
