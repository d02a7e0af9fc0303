"""Writes docs/judge_prompts.md from the prompt files of judges: `python scripts/judge_prompts_page.py`."""

from collections.abc import Mapping
from pathlib import Path

from page_tables import table
from settings_source import escaped
from settings_source import table as settings_table

from mmrl.rewards.base.judging.prompt_files import JudgePrompt, load_prompt, prompt_names
from mmrl.rewards.base.judging.settings import JudgeModel

FILE = Path(__file__).parents[1] / "docs" / "judge_prompts.md"
HEAD = """# Prompts of judges

Written from the files by `python scripts/judge_prompts_page.py`; [judges.md](judges.md) says how a judge is used and
how to write a file of your own. All wordings are mmrl's own. Where a published judge was trained with a wording of its
own, the page says where that stands: copy it into a file, with the scale and the label given here, and name the file in
`prompt`.

"""


def page() -> str:
    """Returns the whole page."""
    files = {name: load_prompt(name) for name in prompt_names()}
    rows = [[f"[{name}](#{name})", file.form, escaped(file.about)] for name, file in files.items()]
    listed = table(["prompt", "form", "what it judges"], rows)
    judge = f"\n## Settings of a judge\n\nEach of `judges` has these:\n\n{settings_table(JudgeModel, {})}\n"
    return HEAD + listed + "\n" + judge + "".join(map(_section, files, files.values()))


def _section(name: str, file: JudgePrompt) -> str:
    facts = [f"form `{file.form}`", f"verdict after `{file.label}`"]
    if file.form in ("number", "rubric", "group_scores"):
        low, high = file.scale
        facts.append(f"levels {', '.join(file.levels)}" if file.levels else f"scale {low:g} to {high:g}")
    if file.form in ("yes_no", "pairwise"):
        facts.append(f"words {', '.join(f'`{word}`' for word in file.words)}")
    facts.append("reasons first" if file.critique else "the verdict alone")
    published = f"\n\nPublished wording: {escaped(file.published)}." if file.published else ""
    questions = dict(file.question) if isinstance(file.question, Mapping) else {"": file.question}
    texts = "".join(
        f"\n\n{f'Where the field of `choose_by` is `{key}`:' if key else ''}\n\n```text\n{text.strip()}\n```".replace(
            "\n\n\n\n", "\n\n"
        )
        for key, text in questions.items()
    )
    criteria = [
        [escaped(one.text), f"{one.weight:g}", "" if one.cap is None else f"{one.cap:g}"] for one in file.criteria
    ]
    listed = f"\n\n{table(['criterion', 'weight', 'cap'], criteria)}" if criteria else ""
    about = file.about[0].upper() + file.about[1:]
    return f"\n## {name}\n\n{escaped(about)}. It has {', '.join(facts)}.{published}{texts}{listed}\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    print(FILE)
