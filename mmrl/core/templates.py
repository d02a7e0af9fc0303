"""Named texts around a prompt, which say what is to be written before the answer: prior prompts."""

from functools import cache
from hashlib import sha256

_END = "then give the final answer inside <answer> </answer>, in \\boxed{}."

# The five kinds of Taveekitworachai et al. 2025, "Prior Prompt Engineering for Reinforcement Fine-Tuning", arXiv
# 2505.14157, in words of our own: chain of thought, plan and solve, program of thought, generated knowledge, null-shot.
TEMPLATES = {
    "think": f"{{prompt}}\n\nFirst reason step by step inside <think> </think>, {_END}",
    "plan": f"{{prompt}}\n\nFirst make a plan of the solution and carry it out inside <plan> </plan>, {_END}",
    "code": f"{{prompt}}\n\nFirst write code that solves it inside <code> </code>, {_END}",
    "knowledge": f"{{prompt}}\n\nFirst recall the facts that it takes inside <knowledge> </knowledge>, {_END}",
    "examples": f"{{prompt}}\n\nFirst look up useful examples inside <examples> </examples>, {_END}",  # there are none
}


def template_text(template: str) -> str:
    """Returns the text of a template, which is given by its name or as it is."""
    return TEMPLATES.get(template, template)


@cache
def template_digest(template: str) -> int:
    """Returns the first six hexadecimal digits of the SHA-256 of a template's text, which a float32 holds exactly."""
    return int(sha256(template_text(template).encode()).hexdigest()[:6], 16)
