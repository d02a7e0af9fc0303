"""Writes docs/algorithms.md from the recipes of the shipped configs: `python scripts/algorithms_page.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from page_tables import config_link, plugin_link, summary, table
from settings_source import escaped

from mmrl.commands import listing, recipes
from mmrl.core import plugins
from mmrl.core.config import RunConfig, load_config
from mmrl.losses.base.denoising import DenoisingLoss
from mmrl.losses.base.outputs import OutputsLoss

FILE = Path(__file__).parents[1] / "docs" / "algorithms.md"
GROUPS: dict[str, tuple[str, ...]] = {  # all but those of `recipes.FIRST`, which have a table of their own
    "Images and videos, by flow and diffusion": (
        "ADIEE", "Adjoint Matching", "AlignProp", "AWM", "Best of n", "BranchGRPO", "Confidence-aware reward",
        "ControlNet++", "Ctrl-U", "D3PO", "DDPO", "DGPO", "Diffusion-DPO", "Diffusion-KTO", "DOLLAR", "DPOK", "DRaFT",
        "DRAGON",
        "E-GRPO", "Edit-R1", "EditReward", "FK steering", "Flow-DPPO", "Flow-NRG", "Flow-RWR", "G2RPO", "GRPO-Guard",
        "HPSv3", "ID-Aligner", "InstructVideo", "LOOP", "MixGRPO-Flash", "MJ-Bench", "Multi-Reward as Condition",
        "Neighbor GRPO", "OneReward", "PEPG", "PRDP", "Precise", "Pref-GRPO", "Preference As Reward", "RAFT", "ReFL",
        "REINFORCE", "Reward model ensembles", "Reward-weighted regression", "RewardDance", "RL-VLM-F", "RLCM",
        "RPO (lambda-Harmonic)",
        "Seedance 1.0", "SPIN-Diffusion", "Supervised fine-tuning", "SVDD", "TempFlow-GRPO", "UnifiedReward",
        "UnifiedReward-Think", "VADER", "VisionReward",
    ),
    "Answers, clicks and turns": (
        "1-shot RLVR", "ACTIVE-O3", "Ada-GRPO", "AgentCPM-GUI", "BLEUBERI", "BRPO", "CGPO", "ChestX-Reasoner",
        "Clip and Delta", "CLS-RL", "DeepSeek-GRM", "DeepVideo-R1", "Dense turn rewards", "DUMP", "Embodied-R", "EMPO",
        "Entropy-based advantages", "FGRPR", "Fine-Grained RLHF", "Format and length surrogate", "GCPO", "GRIT",
        "GRPO-CARE", "GRPO-D", "GRPO-lambda", "GRPO-S", "GTPO", "GTPO (entropy)", "GUI-G1", "GUI-G2", "GUI-R1",
        "GUI-Shepherd", "GuidNav", "IGPO", "Implicit PRM", "Intuitor", "IXC-2.5-Reward", "Listener-rewarded thinking",
        "MagicMirror", "Master-RM", "Mixed-R1", "MM-DPO", "MM-UPT", "NFT", "No-Thinking-CLS-RL", "PERL", "pPE", "PPR",
        "ProgRM", "Prompt-A-Video", "PromptEnhancer", "PURE", "Reasoning-SQL", "ReDit", "ReMax", "RewardAnything",
        "RFT suitability", "RiskPO", "RLOO on turns", "RLVR across diverse domains", "RoboRefer", "S-GRPO",
        "ScreenExplorer", "SCST", "SE-GUI", "SEED-GRPO", "Seg-Zero", "Selective sample replay",
        "Semantic encoder reward", "Skywork-VL Reward", "SPCT", "SPO-tree", "SRPO", "STAR-R1", "Step-GRPO",
        "Stratified GRPO", "Table2LaTeX-RL", "Temporal-RLT", "Think-RM", "Time-R1", "ToolRL", "TreeRL", "TreeRPO",
        "Trust-GRPO", "TW-GRPO", "UI-R1", "Unlikeliness reward", "VideoChat-R1", "Vision-R1", "Visual-RFT",
        "VL-Rethinker", "VL-RewardBench", "VLAA-Thinker", "VLM-R1", "VPO", "XRPO",
    ),
    "Both": (
        "APA", "AsymRE", "CISPO", "Clip-Cov", "CoPG", "DisCO", "DPO", "Dr. GRPO", "DRA-GRPO", "G-RA", "GDPO", "GMPO",
        "GPG", "GVPO", "HERON", "InfoNCA", "KL-Cov", "MaxRL", "NCA", "NGRPO", "ODPO", "Online difficulty filtering",
        "OPMD", "OPO", "Over-optimisation measured by KL", "Pass@k training", "QAE", "rDPO", "REBEL", "REC",
        "Reg-GRPO", "REINFORCE++", "REINFORCE++ with baseline", "Reward scaling", "RLOO", "RPO", "SAPO", "SPPO",
        "TOPR", "Trimmed statistics", "Vanishing gradients",
    ),
}  # fmt: skip
FIRST = "What people come for"
ABOUT = {
    "Images and videos, by flow and diffusion": """
A loss that learns from final samples takes those of any sampler, and a loss that learns from random steps those of any
random sampler: [every loss](#every-loss). `fk_steering`, `svdd`, `guided` and `best_of_n` also serve sampling and
evaluation alone.
""",
    "Answers, clicks and turns": "",
    "Both": """
They learn from random choices, whether tokens or denoising steps. Their configs are on tokens; another sampler, such as
`flow_sde` or `precise`, makes them learn from images. The losses of preferences (`dpo`, `rebel`, `copg` ...) take any
advantage.
""",
}
HEAD = """# Every algorithm

Written from the shipped configs by `python scripts/algorithms_page.py`; `mmrl list recipes` prints the same rows.
An algorithm is a sampler, a loss and an advantage, and `mmrl train CONFIG` runs it. [recipes.md](recipes.md) says where
a config differs from its paper, and [lab.md](lab.md#all-algorithms-the-same-budgets) how all of them do on the same
small models with the same budget. The configs of families/, one for each [family of pipelines](families.md), are all
Flow-GRPO and are not repeated here.

The level says how far a config was tried:

- *lab*: it learns on an embedded lab, with a tiny model, on a CPU.
- *twin*: it is of real size, and runs on a small random model of the same classes.
- *gpu*: it was measured at real size.
- *reproduced*: it reached the published number.

Where to begin:

- images, with rewards of any kind: DiffusionNFT, or Flow-GRPO when you want policy gradients;
- images, with a differentiable reward: DRaFT;
- pairs that are there already: Flow-DPO or Diffusion-DPO;
- answers and clicks: GRPO, with DAPO's settings where many groups agree;
- agents: GRPO on episodes.
"""
LEARNS = {
    "decisions": "random choices: tokens, or random denoising steps",
    "denoising": "final samples, of any sampler or from the data",
    "outputs": "a reward with a gradient; any sampler",
}


def page() -> str:
    """Returns the page. Raises ValueError where GROUPS lacks an algorithm, or holds a name of none."""
    algorithms: dict[str, list[dict[str, Any]]] = {}
    for row in recipes.rows():
        algorithms.setdefault(row["name"], []).append(row)
    grouped = [*recipes.FIRST, *(name for names in GROUPS.values() for name in names)]
    if wrong := sorted(set(algorithms).symmetric_difference(grouped)):
        raise ValueError(f"GROUPS of scripts/algorithms_page.py must hold each algorithm once; see {wrong}")
    parts = [HEAD]
    for group, names in {FIRST: recipes.FIRST, **GROUPS}.items():
        head = ("algorithm", "sampler", "loss", "advantage", "configs, by level")
        cells = table(head, [row_of(algorithms[name]) for name in names])
        parts += [f"## {group}\n{ABOUT.get(group, '')}", cells + "\n"]
    return "\n".join([*parts, *every_part(), *every_paper(algorithms)])


def row_of(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Returns the cells of one algorithm from the rows of its configs."""
    authors = rows[0]["paper"].partition(",")[0]
    name = f"[{escaped(rows[0]['name'])}](https://arxiv.org/abs/{rows[0]['arxiv']}), {authors}"
    marks = [set(marked(load_config(row["config"]))) for row in rows]
    shared = sorted(set.intersection(*marks))
    parts = []
    for kind, section in (("samplers", "sampler"), ("losses", "loss"), ("advantages", "advantage")):
        names = dict.fromkeys(row[section] for row in rows)
        links = ", ".join(plugin_link(cast(plugins.Kind, kind), one) for one in names)
        parts.append("; ".join([links, *(text for of, text in shared if of == section)]))
    levels: dict[str, list[str]] = {}
    for row in rows:
        levels.setdefault(row["level"], []).append(config_link(row["config"]))
    return (name, *parts, "; ".join(f"*{level}*: {', '.join(links)}" for level, links in sorted(levels.items())))


def marked(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yields the settings that make an algorithm, beside its parts: the part that they stand with, and their words."""
    sampler, loss, advantage = config.sampler, config.loss, config.advantage
    if "window" in sampler:
        yield "sampler", f"window `{sampler['window'].get('mode', 'all')}`"
    yield from (("sampler", f"`{name}`") for name in ("tail", "greedy", "controls") if sampler.get(name))
    if config.groups.degenerate != "keep":
        yield "sampler", f"groups `{config.groups.degenerate}`"
    if config.groups.more is not None:
        yield "sampler", "groups `more`"
    if config.replay is not None:
        yield "sampler", "`replay`"
    if loss.get("clip_low", loss.get("clip_high")) != loss.get("clip_high"):
        yield "loss", "`clip_high` above `clip_low`"
    if loss.get("normalise") == "constant":
        yield "loss", "`normalise: constant`"
    if advantage.get("is_unbiased"):
        yield "advantage", "`is_unbiased`"


def every_part() -> Iterator[str]:
    """Yields the sections that name all samplers, losses and advantages, also those without a config of their own."""
    yield "## Every sampler\n\n" + two_columns("samplers") + "\n"
    rows = [
        (plugin_link("losses", name), summary("losses", name), learns_from(name)) for name in plugins.names("losses")
    ]
    yield "## Every loss\n\n" + table(("loss", "what it does", "learns from"), rows) + "\n"
    yield "## Every advantage\n\n" + two_columns("advantages") + "\n"


def two_columns(kind: plugins.Kind) -> str:
    rows = [(plugin_link(kind, name), summary(kind, name)) for name in plugins.names(kind)]
    return table((plugins.singular(kind), "what it does"), rows)


def learns_from(name: str) -> str:
    """Returns what a loss learns from, in words."""
    cls = plugins.find("losses", name)
    if issubclass(cls, OutputsLoss):
        return LEARNS["outputs"]
    if name in ("sft", "raft", "rwr"):  # of answers, their tokens
        return f"{LEARNS['denoising']}; or answers"
    return LEARNS["denoising" if issubclass(cls, DenoisingLoss) else "decisions"]


def every_paper(algorithms: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yields the last section: each algorithm with a sentence about it, and its paper in full."""
    sentences = {row["name"]: row["summary"] for row in listing.rows("configs")}
    yield "## Every paper\n"
    for name, rows in sorted(algorithms.items(), key=lambda item: item[0].lower()):
        lab = [row["config"] for row in rows if row["config"].startswith("lab/")]
        about = sentences[[*lab, rows[0]["config"]][0]]
        link = f"[{rows[0]['arxiv']}](https://arxiv.org/abs/{rows[0]['arxiv']})"
        yield f"- **{escaped(name)}**: {escaped(rows[0]['paper'])}, arXiv {link}. {escaped(about)}"
    yield ""


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    print(FILE)
