"""`mmrl init`: from a model, data, a reward and the memory of a GPU to a commented config, by the nearest recipe."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmrl.commands.init_text import written
from mmrl.commands.shipped import sections_of
from mmrl.core.config import DatasetSettings, check_config, near_config, shipped_names
from mmrl.prompts import layout as layouts
from mmrl.system import spelling
from mmrl.system.errors import ConfigError

# Hub names of models that answer questions about images and videos.
ANSWERING = r"vl\b|vlm|llava|idefics|gemma-?3|ui-tars|gui-|infigui|showui|os-atlas|vl-"
ANSWERS = ("vision_language", "gui", "video")  # modalities whose samples are texts
TEMPLATE = (
    "{prompt} Think first, between <think> and </think>. Then give the final answer alone, between <answer> and "
    "</answer>."
)
ROWS = (".jsonl", ".json", ".parquet", ".csv")
MEDIA = (".png", ".jpg", ".jpeg", ".webp", ".mp4")
HELD_OUT = ("held_out", "validation", "val", "test", "eval")  # names of the files with held-out rows
PIPELINES = {  # the class in model_index.json of pipelines that have recipes of their own
    "StableDiffusionPipeline": "stable_diffusion",
    "StableDiffusionXLPipeline": "stable_diffusion_xl",
    "StableDiffusion3Pipeline": "sd3",
}
# Weights in billions where the name does not say them: the network that is trained, and its text encoders in memory.
SIZES = (
    (r"stable-diffusion-v1|sd-?v?1", 1.1), (r"xl", 3.5), (r"3\.5-medium", 8.0), (r"3\.5-large", 14.0),
    (r"flux\.2-dev", 56.0), (r"flux", 17.0), (r"qwen-image", 28.0), (r"z-image", 10.0), (r"sana", 4.3),
)  # fmt: skip


# The fields by which rows are taken for those of a layout: of pictures to edit, and of questions.
EDITS: Mapping[str, set[str]] = {
    "edit": {"prompt", "image"}, "magic_brush": {"source_img", "instruction", "target_img"},
    "instruct_pix2pix": {"original_image", "edit_prompt"}, "ultra_edit": {"source_image", "edit_prompt"},
    "omni_edit": {"src_img", "edited_prompt_list"}, "gedit_bench": {"input_image", "instruction"},
}  # fmt: skip
QUESTIONS: Mapping[str, set[str]] = {
    "verl": {"prompt", "reward_model"}, "ms_swift": {"messages", "objects"}, "vlm_r1": {"image", "conversations"},
    "time_r1": {"video", "timestamp", "sentence"}, "video_r1": {"problem", "data_type", "path", "solution"},
    "ui_r1": {"img_filename", "instruction", "bbox"}, "gui_g2": {"image_path", "instruction", "abs_box"},
    "easyr1": {"images", "problem", "answer"}, "trl": {"image", "problem", "solution", "original_question"},
}  # fmt: skip


@dataclass(frozen=True)
class Wishes:
    """What the user said."""

    model: str
    data: str
    reward: str
    memory: float  # of one GPU, GB
    like: str | None = None  # the recipe to start from
    layout: str | None = None  # of the rows


@dataclass(frozen=True)
class Data:
    """The prompts that were found."""

    train: Any  # a source of prompts, as in a config
    held_out: Any  # None where none was found
    fields: frozenset[str]  # of the first row; empty for a .txt file or a data set that is not here
    reasons: tuple[str, ...]
    rows: int | None = None  # of the training data; None: not counted


@dataclass(frozen=True)
class Start:
    """A config to start from, and why it is as it is."""

    text: str
    recipe: str
    reasons: tuple[str, ...] = field(default=())


def start_from(wishes: Wishes) -> Start:
    """Returns the config for the wishes. Raises ConfigError where no config can come of them, in the user's words."""
    check_reward(wishes.reward)
    if wishes.memory <= 0:
        raise ConfigError(f"--memory is the memory of one GPU in GB, above 0; got {wishes.memory:g}")
    recipe, why = nearest_recipe(wishes)
    tree = sections_of(recipe)
    data = find_data(wishes, tree)
    changed, memory = fitted(tree, wishes)
    changed |= {"prompts": {"train": data.train}, "rewards": rewards_for(tree, wishes.reward)}
    changed["modality"] = changed["modality"] | {"model": wishes.model}
    if data.held_out is None:
        changed["evaluation"] = None
    else:
        changed["prompts"]["held_out"] = data.held_out
        if rewards := tree["evaluation"].get("rewards"):
            kept = [one for one in rewards if one["name"] == wishes.reward]
            changed["evaluation"] = {**tree["evaluation"], "rewards": kept or [{"name": wishes.reward}]}
    if data.rows is not None:
        changed["iterations"] = min(
            int(tree["iterations"]), max(100, 3 * data.rows // int(tree["prompts_per_iteration"]))
        )
    text = written(recipe, {**tree, **changed}, frozenset(changed))
    check_config(yaml.safe_load(text))
    return Start(text, recipe, (*why, *data.reasons, *memory))


def check_targets(name: str, layout: str, fields: frozenset[str]) -> None:
    """Raises ConfigError where a reward judges by a field that rows in plain columns do not have."""
    lacking = sorted(targets_of(name) - fields)
    if layout == "columns" and fields and lacking:
        raise ConfigError(
            f"reward {name!r} judges by {', '.join(lacking)}, which the rows do not have; "
            f"their fields are {', '.join(sorted(fields))}"
        )


def targets_of(reward: str) -> set[str]:
    """Returns the fields of a prompt's target by which a reward judges."""
    from mmrl.core import plugins

    needs: frozenset[str] = plugins.find("rewards", reward).needs  # type: ignore[attr-defined]
    return {need.removeprefix("target.") for need in needs if need.startswith("target.")}


def check_reward(name: str) -> None:
    """Raises ConfigError for a reward that is none, with the nearest name."""
    from mmrl.core import plugins

    plugins.find("rewards", name)


def nearest_recipe(wishes: Wishes) -> tuple[str, list[str]]:
    """Returns the shipped config that is nearest to the wishes, and why.

    It trains models of the same kind. The same reward counts most, then the same model. Raises ConfigError for a
    model of which nothing is known.
    """
    trees = {name: sections_of(name) for name in shipped_names() if not name.startswith(("lab/", "quickstart"))}
    if wishes.like is not None:
        if wishes.like not in trees:
            raise ConfigError(
                f"--like takes a shipped config of real size, got {wishes.like!r}{near_config(wishes.like)}"
            )
        return wishes.like, [f"recipe {wishes.like}: as --like says"]
    kind = kind_of(wishes.model, trees)
    fitting = {name: tree for name, tree in trees.items() if kind(name, tree)}
    if not fitting:
        models = sorted({str(tree["modality"].get("model")) for tree in trees.values()})
        near = spelling.near(wishes.model, models)
        raise ConfigError(
            f"cannot tell what kind of model {wishes.model!r} is{near}; --like CONFIG names a recipe for it, and a "
            "folder says it by its config.json or model_index.json"
        )

    def score(name: str) -> tuple[bool, bool, bool, bool, str]:
        tree = fitting[name]
        return (
            wishes.reward not in names_of(tree["rewards"]),
            tree["modality"].get("model", "").lower() != wishes.model.lower(),
            name.startswith("families/"),
            tree.get("sharding") == "full",
            name,
        )

    best = min(fitting, key=score)
    lacks, differs, *_ = score(best)
    why = f"the same {'kind of model' if differs else 'model'}{'' if lacks else ' and reward'}"
    recipe = fitting[best]["recipe"]
    return best, [f"recipe {best} ({recipe['name']}, arXiv {recipe['arxiv']}): {why}, of {len(fitting)} that fit"]


def kind_of(model: str, trees: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns the rule that says whether a recipe, by name and sections, trains models of this kind."""
    index, config = Path(model) / "model_index.json", Path(model) / "config.json"
    if index.is_file() or (Path(model) / "modular_model_index.json").is_file():
        name = json.loads(index.read_text(encoding="utf-8")).get("_class_name", "") if index.is_file() else ""
        if name in PIPELINES:
            return lambda _, tree: tree["modality"]["name"] == PIPELINES[name]
        words = re.sub(r"(Pipeline|ImageToVideo|Modular)", "", str(name)).lower()
        return lambda _, tree: _is_like(words, str(tree["modality"].get("family", "")))
    if config.is_file():
        return lambda _, tree: tree["modality"]["name"] in ANSWERS
    if re.search(ANSWERING, model.lower()):  # of vision-language models: a recipe of one runs the others
        return lambda _, tree: tree["modality"]["name"] in ANSWERS
    if any(_model(tree) == model.lower() for tree in trees.values()):
        return lambda _, tree: _model(tree) == model.lower()
    series = _series(model)
    return lambda _, tree: bool(series) and _series(_model(tree)) == series


def _model(tree: Mapping[str, Any]) -> str:
    return str(tree["modality"].get("model", "")).lower()


def _series(model: str) -> str:
    """Returns the letters and numbers that begin a hub name behind its owner, without sizes: flux1, wan21, sana."""
    name = model.rpartition("/")[2].lower().replace(".", "")
    found = re.match(r"stable-diffusion-(xl|3|v1)|[a-z]+(-image)?-?\d*", name)
    return "" if found is None else found.group().replace("-", "")


def _is_like(pipeline: str, family: str) -> bool:
    return bool(family) and re.sub(r"[\d_]", "", family) in pipeline


def names_of(rewards: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of rewards, with those inside of wrappers."""
    inner = [one["reward"] for one in rewards if isinstance(one.get("reward"), Mapping)]
    return [one["name"] for one in rewards] + (names_of(inner) if inner else [])


def rewards_for(tree: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the section of rewards: those of the recipe where it has this reward, else this one.

    A reward of images judges the frames of a recipe that makes videos. Answers get a tenth for the tags of TEMPLATE.
    """
    from mmrl.core import plugins

    if name in names_of(tree["rewards"]):
        return list(tree["rewards"])
    one: dict[str, Any] = {"name": name}
    needs = plugins.find("rewards", name).needs  # type: ignore[attr-defined]
    if tree["modality"].get("output") == "video" and "images" in needs:
        one = {"name": "frame_mean", "reward": one, "frames": 4}
    if tree["modality"]["name"] in ANSWERS and "images" in needs and "texts" not in needs:
        raise ConfigError(f"reward {name!r} judges images, and this model answers in text")
    if tree["modality"]["name"] not in ANSWERS and "texts" in needs:
        raise ConfigError(
            f"reward {name!r} judges answers, and this model makes {tree['modality'].get('output', 'image')}s"
        )
    is_answer = tree["modality"]["name"] in ANSWERS and name != "format_tags"
    return [one, {"name": "format_tags", "weight": 0.1}] if is_answer else [one]


# --- data


def find_data(wishes: Wishes, tree: Mapping[str, Any]) -> Data:
    """Returns the prompts of a .txt file, a file of rows, a folder with such a file, or a data set of the hub."""
    path, is_answers = Path(wishes.data).expanduser(), tree["modality"]["name"] in ANSWERS
    if not path.exists():
        if re.fullmatch(r"[\w.-]+/[\w.-]+", wishes.data) and not path.suffix:
            rows_of_hub = {"path": wishes.data, "layout": wishes.layout or "columns"}
            why = f"data {wishes.data}: taken for a data set of the hub, layout {rows_of_hub['layout']}"
            return Data(_templated(rows_of_hub, tree, wishes.reward), None, frozenset(), (why,))
        raise ConfigError(f"--data {wishes.data}: there is no such file or folder")
    if path.suffix == ".txt":
        if is_answers:
            raise ConfigError(f"--data {path}: a model that answers needs rows with questions and targets, not a .txt")
        return Data(str(path), None, frozenset(), (f"data {path}: one prompt a line",), count_rows(path))
    files = [path] if path.is_file() else [one for one in sorted(path.iterdir()) if one.suffix in ROWS]
    held_out = [one for one in files if any(word in one.stem.lower() for word in HELD_OUT)]
    train = [one for one in files if one not in held_out] or files
    if len(train) != 1:
        names = ", ".join(one.name for one in train) or "none"
        raise ConfigError(
            f"--data {path} must have one file of rows ({', '.join(ROWS)}) to train on, got {names}; name it"
        )
    if train[0].suffix not in ROWS:
        raise ConfigError(f"--data {train[0]}: prompts stand in a .txt or a file of rows ({', '.join(ROWS)})")
    fields = frozenset(first_row(train[0]))
    images = {"images": str(path)} if path.is_dir() and _has_media(path) else {}
    by_fields = layout_of(fields, tree)
    layout = wishes.layout or by_fields or layout_by_trial(train[0], images, wishes.reward, fields)
    check_targets(wishes.reward, layout, fields)
    rows = count_rows(train[0])

    def section(file: Path) -> Any:
        return _templated({"path": str(file), "layout": layout, **images}, tree, wishes.reward)

    names = ", ".join(sorted(fields))
    why = f"by the fields {names}" if by_fields else f"by trial: it reads the first rows, whose fields are {names}"
    reasons = [f"data {train[0]}: layout {layout}, {'as --layout says' if wishes.layout else why}"]
    if held_out and train[0] not in held_out:
        reasons.append(f"held-out evaluation on {held_out[0]}")
        return Data(section(train[0]), section(held_out[0]) | {"limit": 256}, fields, tuple(reasons), rows)
    reasons.append("no held-out evaluation: a file whose name has held_out, test or val in it would be taken")
    return Data(section(train[0]), None, fields, tuple(reasons), rows)


def _has_media(folder: Path) -> bool:
    return any(one.suffix.lower() in MEDIA for one in folder.rglob("*"))


def _templated(section: dict[str, Any], tree: Mapping[str, Any], reward: str) -> dict[str, Any]:
    """Returns a section of data with the recipe's text around each prompt, or TEMPLATE where its reward is another."""
    train = tree["prompts"]["train"]
    template = train.get("template") if isinstance(train, Mapping) else None
    if reward not in names_of(tree["rewards"]):
        template = TEMPLATE if tree["modality"]["name"] in ANSWERS else None
    if template is None or "{row." in template:
        return section
    return section | {"template": template}


def count_rows(file: Path) -> int | None:
    """Returns the number of rows of a file with one a line; None for others."""
    if file.suffix not in (".txt", ".jsonl"):
        return None
    with file.open(encoding="utf-8") as lines:
        return sum(bool(line.strip()) for line in lines)


def first_row(file: Path) -> dict[str, Any]:
    """Returns the first row of a file. Raises ConfigError where there is none."""
    try:
        if file.suffix == ".jsonl":
            with file.open(encoding="utf-8") as lines:
                row = json.loads(next(line for line in lines if line.strip()))
        elif file.suffix == ".json":
            row = json.loads(file.read_text(encoding="utf-8"))[0]
        else:
            import datasets

            kind = "parquet" if file.suffix == ".parquet" else "csv"
            row = next(iter(datasets.load_dataset(kind, data_files=str(file), split="train", streaming=True)))
    except (OSError, ValueError, LookupError, StopIteration) as error:
        raise ConfigError(f"--data {file}: cannot read its first row: {error or 'it has none'}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"--data {file}: its first row must be a mapping of fields, got {type(row).__name__}")
    return row


def layout_of(fields: frozenset[str], tree: Mapping[str, Any]) -> str | None:
    """Returns the layout that a row's fields belong to; None where they do not say it."""
    is_edit = bool(tree["modality"].get("condition_images") or tree["modality"].get("conditions"))
    layouts_of_kind = EDITS if is_edit else QUESTIONS if tree["modality"]["name"] in ANSWERS else {}
    plain = {"prompt", "messages", "image", "images"}  # which `columns` has too
    fits = {name: needed for name, needed in layouts_of_kind.items() if needed <= fields and needed - plain}
    best = max(map(len, fits.values()), default=0)
    named = [name for name, needed in fits.items() if len(needed) == best]
    if len(named) == 1:
        return named[0]
    if {"prompt", "messages"} & fields:
        return "edit" if is_edit else "columns"
    return None


def layout_by_trial(file: Path, images: dict[str, str], reward: str, fields: frozenset[str]) -> str:
    """Returns the layout that reads the first rows and finds what the reward judges by.

    Raises ConfigError where no layout does, or several do and read different prompts.
    """
    from mmrl.prompts.datasets import load_dataset_prompts

    targets = targets_of(reward)
    fits = {}
    for name in layouts.names():
        settings = {"path": str(file), "layout": name, "limit": 4, **images}
        try:
            prompts = load_dataset_prompts(DatasetSettings.model_validate(settings))
        except ConfigError:
            continue
        if all(targets <= prompt.target.keys() for prompt in prompts):
            fits[name] = [(prompt.text, prompt.target) for prompt in prompts]
    if fits and all(read == next(iter(fits.values())) for read in fits.values()):
        return next(iter(fits))
    judged = f" with {', '.join(sorted(targets))} for {reward}" if targets else ""
    found = f"{len(fits)} layouts read it{judged}; --layout names one of {', '.join(fits)}"
    raise ConfigError(
        f"--data {file} has the fields {', '.join(sorted(fields))}: "
        + (found if fits else f"no layout of docs/data.md reads it{judged}")
        + ". Or rename the fields to those of `columns`: prompt, images, answer, box ..."
    )


# --- memory


def fitted(tree: Mapping[str, Any], wishes: Wishes) -> tuple[dict[str, Any], list[str]]:
    """Returns the sections that the memory of one GPU asks to be changed, and why. Raises ConfigError where none fits.

    Frozen weights take 2 bytes each in bfloat16 and about 0.6 in 4 bits; trained ones 16 with their gradient, two
    moments and float32 copy. What is left is for activations, in proportion to which batches shrink.
    """
    modality, updates = dict(tree["modality"]), dict(tree.get("updates") or {})
    changed: dict[str, Any] = {"sharding": None} if tree.get("sharding") == "full" else {}
    size, memory = billions(wishes.model), wishes.memory
    if not size:
        size, known = billions(str(modality.get("model", ""))) or 7.0, False
    else:
        known = True
    reasons = [f"the model has about {size:g} billion weights{'' if known else ', as that of the recipe'}"]
    is_full = not modality.get("lora")
    if is_full and 16 * size > 0.7 * memory:
        modality["lora"] = {"rank": 64, "alpha": 128} if modality["name"] in ANSWERS else {"rank": 32, "alpha": 64}
        reasons.append(f"LoRA: to train all weights takes about {16 * size:.0f} GB")
    weights = 16 * size if not modality.get("lora") else 2 * size
    if modality.get("lora") and weights > 0.7 * memory:
        weights = 0.6 * size
        modality["quantise"] = {"bits": 4}
        reasons.append(f"4-bit weights under the LoRA: about {weights:.0f} GB where bfloat16 takes {2 * size:.0f} GB")
        reasons.append('4 bits need bitsandbytes: pip install "mmrl[quantise]"')
        if weights > 0.8 * memory:
            raise ConfigError(
                f"{wishes.model} needs about {weights / 0.8:.0f} GB in 4 bits with a LoRA, and --memory is {memory:g}; "
                "`sharding: full` spreads a model over several GPUs"
            )
    modality["gradient_checkpointing"] = True
    share = min(1.0, (memory - weights) / 60.0)  # the recipes' batches are for 80 GB
    for name in ("network_batch", "decode_batch", "answer_batch"):
        if name in modality:
            modality[name] = _less(modality[name], share)
    if "micro_batch" in updates:
        updates["micro_batch"] = _less(updates["micro_batch"], share)
    if share < 1:
        reasons.append(f"batches of {share:.0%} of the recipe's: about {memory - weights:.0f} GB are left for them")
    if is_full and modality.get("lora"):
        rate = 1.0e-5 if modality["name"] in ANSWERS else 1.0e-4
        optimizer = {**tree["optimizer"], "learning_rate": max(rate, float(tree["optimizer"]["learning_rate"]))}
        changed["optimizer"] = optimizer
    groups = 1 if share < 0.5 else tree.get("rollout_groups")
    changed |= {"modality": modality, "rollout_groups": groups}
    return changed | ({"updates": updates} if updates else {}), reasons


def _less(size: int, share: float) -> int:
    """Returns a share of a batch as a power of two, at least 1."""
    return max(1, 2 ** max(0, int(size * share).bit_length() - 1)) if share < 1 else size


def billions(model: str) -> float:
    """Returns the number of weights in billions: of a folder by its files, else by the name; 0 where unknown."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return round(sum(one.stat().st_size for one in folder.rglob("*.safetensors")) / 2e9, 1)
    name = model.rpartition("/")[2].lower()
    if found := re.search(r"(?<![\d.])(\d+(?:\.\d+)?)b(?![a-z])", name):
        return float(found.group(1))
    return next((size for pattern, size in SIZES if re.search(pattern, name)), 0.0)


def said(start: Start, out: Path) -> Iterator[str]:
    """Yields the lines that say what was chosen and what to do next."""
    yield f"{out}, from {start.recipe}:"
    yield from (f"- {reason}" for reason in start.reasons)
    yield "Next:"
    yield f"  mmrl check {out} --tiny"
    yield f"  mmrl train {out}"
