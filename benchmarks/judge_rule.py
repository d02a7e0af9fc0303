"""Plain GRPO by a rule of a lab, called directly and behind a judge's address: weights that differ in any bit.

    PYTHONPATH=. python benchmarks/judge_rule.py --iterations 20 --seeds 0 1 2

`clicks` is `lab/grpo` with `text_judge`, `images` is `lab/flow_grpo` with `vlm_judge`; the address is a server of this
process that speaks OpenAI's protocol and answers by the same rule.
"""

import argparse
import tempfile
import time
from pathlib import Path

from _common import emit

from tests.rewards.base.judging.lab_rules import CLICKS, IMAGES, num_different, trained
from tests.rewards.base.judging.openai_server import serving

LABS = {"clicks": CLICKS, "images": IMAGES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labs", nargs="+", choices=sorted(LABS), default=sorted(LABS))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    for name in given.labs:
        lab = LABS[name]
        for seed in given.seeds:
            with tempfile.TemporaryDirectory() as text, serving(lab.answer) as served:
                folder, began = Path(text), time.process_time()
                direct = trained(lab, lab.direct(), seed, given.iterations, folder / "direct")
                middle = time.process_time()
                over_api = trained(lab, lab.over_api(served.url, folder), seed, given.iterations, folder / "api")
                emit(
                    "judge_rule",
                    lab=name,
                    seed=seed,
                    iterations=given.iterations,
                    requests=len(served.bodies),
                    weights=sum(one.numel() for one in direct.values()),
                    different=num_different(direct, over_api),
                    cpu_seconds={"direct": round(middle - began, 1), "api": round(time.process_time() - middle, 1)},
                )


if __name__ == "__main__":
    main()
