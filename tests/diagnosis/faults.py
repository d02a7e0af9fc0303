"""Faults that people had, each planted in two labs: thresholds were set on the first one, not on the second."""

from dataclasses import dataclass
from functools import cache

from mmrl.commands.doctor import doctor

REWARDS = "tests.diagnosis.planted_rewards"
SHORT = ("evaluation.num_prompts=16", "evaluation.samples_per_prompt=1")


@cache
def _findings(run: tuple[str, ...]) -> dict[str, str]:
    return {one.name: one.severity for one in doctor(run[0], run[1:])}


@dataclass(frozen=True)
class Lab:
    """A run of a lab: its config, and settings that the healthy run and the sick one share."""

    config: str
    shared: tuple[str, ...] = ()
    iterations: int = 3

    def findings(self, *fault: str) -> dict[str, str]:
        """Trains, and returns the severities of what the doctor says of the run, by name."""
        return _findings((self.config, *SHORT, *self.shared, f"iterations={self.iterations}", *fault))


@dataclass(frozen=True)
class Fault:
    """What is planted, and the finding that must name it."""

    finding: str
    source: str  # who had it: a public thread, a paper, or a run of docs/curves.md
    planted: tuple[str, ...]
    labs: tuple[Lab, Lab]
    second: tuple[str, ...] | None = None  # what is planted in the second lab; None: the same

    def seen(self, number: int) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the findings in lab 0 or 1 with the fault and without it."""
        planted = self.second if number and self.second is not None else self.planted
        return self.labs[number].findings(*planted), self.labs[number].findings()


def paid_by(function: str, *more: str) -> str:
    """Returns the setting that makes a sick function the reward."""
    return f"rewards=[{{name: python, function: {REWARDS}:{function}{''.join(f', {one}' for one in more)}}}]"


FOUR_PASSES = ("updates.epochs=4", "optimizer.schedule=constant", "averaging=null")
ROOTED = paid_by("rooted", "differentiable: true")
TWO_REWARDS = f"rewards=[{{name: shapes, measure: graded}}, {{name: python, function: {REWARDS}:constant}}]"
WITH_KL = ("loss.kl=k3", "loss.kl_coef=1.0e-6")
FEW_WANTED = ("groups.degenerate=refill", "groups.max_refills=1", "groups.mean_between=[0.45,0.5]")
POLICIES = "modality.name=tests.diagnosis.planted_policies"
LATE = ("sampler.share_noise=true", "sampler.window={mode: range, first: 4, last: 5}")
TO_THE_CORNER = (paid_by("corner"), "optimizer.learning_rate=5e-4")
LONGER = (paid_by("long"), "optimizer.learning_rate=1e-3")
WARM = ("sampler.temperature=2.0", "sampler.max_tokens=64")

FAULTS = (
    Fault(
        "learning_rate_too_low",
        "a newcomer's first run, whose reward stayed as it was: the rate of another optimizer",
        ("optimizer.learning_rate=1e-8",),
        (Lab("lab/grpo"), Lab("lab/flow_grpo")),
    ),
    Fault(
        "average_lags",
        "an average of diffusion models, 0.9999, in a run of some hundred steps",
        ("averaging.decay=0.9999",),
        (Lab("lab/flow_grpo"), Lab("lab/dapo")),
    ),
    Fault(
        "learning_rate_too_high",
        "docs/curves.md, rate; flow_grpo issue 212: hacked within 10 steps at 1e-4, not at 6e-5",
        ("optimizer.learning_rate=3e-3",),
        (Lab("lab/grpo", iterations=2), Lab("lab/gspo", iterations=2)),
    ),
    Fault(
        "reward_fell",
        "docs/curves.md, rate; DanceGRPO issue 45: the reward drops and samples are noise",
        ("optimizer.learning_rate=3e-3",),
        (Lab("lab/grpo", iterations=5), Lab("lab/mix_grpo", iterations=4)),
        ("optimizer.learning_rate=6e-3",),
    ),
    Fault(
        "held_out_fell",
        "docs/curves.md, corner; SRPO issue 22: good after 10 steps, broken after 50",
        TO_THE_CORNER,
        (Lab("lab/grpo", iterations=8), Lab("quickstart_grounding", iterations=8)),
    ),
    Fault(
        "groups_without_spread",
        "docs/curves.md, cold; ms-swift issues 4570 and 4512: outputs of a group hardly differ, the gradient is 0",
        ("sampler.temperature=0.1", "rewards=[{name: point_in_box}]"),
        (Lab("lab/grpo", iterations=2), Lab("lab/turns_rloo", iterations=2)),
        ("sampler.temperature=0.05",),
    ),
    Fault(
        "reward_constant",
        "trl issue 3452 and ms-swift issue 4547: all rewards are equal, loss and gradient are 0",
        (paid_by("constant"),),
        (Lab("lab/grpo"), Lab("lab/flow_grpo")),
    ),
    Fault(
        "one_reward_constant",
        "flow_grpo issue 142: of two rewards one does not rise",
        ("rewards=[{name: point_in_box}, {name: format_tags, tags: [think]}]",),
        (Lab("lab/grpo", ("rewards=[{name: point_in_box}, {name: gaussian_click}]",)), Lab("lab/mix_grpo")),
        (TWO_REWARDS,),
    ),
    Fault(
        "never_clips",
        "docs/curves.md, clip-never; DanceGRPO issue 45: clip_range 1e-2 for images",
        ("loss.clip_low=0.2", "loss.clip_high=0.2"),
        (Lab("lab/flow_grpo", FOUR_PASSES), Lab("lab/mix_grpo", FOUR_PASSES)),
    ),
    Fault(
        "always_clips",
        "docs/curves.md, clip-always; flow_grpo issue 212: how to set clip_range",
        ("loss.clip_low=1e-5", "loss.clip_high=1e-5"),
        (Lab("lab/flow_grpo", FOUR_PASSES), Lab("lab/mix_grpo", FOUR_PASSES)),
    ),
    Fault(
        "answers_unfinished",
        "docs/curves.md, cut; trl issue 5697: max_completion_length 256 cuts 97% of the answers",
        ("sampler.max_tokens=4",),
        (Lab("lab/grpo", iterations=2), Lab("quickstart_grounding", iterations=2)),
    ),
    Fault(
        "answers_unreadable",
        "docs/curves.md, dialect; mlx-examples pull request 1233: the format is never hit, rewards stay 0",
        ("modality.dialect=ui_tars",),
        (Lab("lab/grpo", iterations=2), Lab("quickstart_agent", iterations=2)),
    ),
    Fault(
        "lengths_drift",
        "Singhal et al. 2023, arXiv 2310.03716; Search-R1 issue 92",
        LONGER,
        (Lab("lab/grpo", WARM, iterations=5), Lab("quickstart_grounding", WARM, iterations=5)),
    ),
    Fault(
        "entropy_collapsed",
        "docs/curves.md, corner; verl issue 5953 and Intuitor issue 26: the entropy of a token goes to 0",
        TO_THE_CORNER,
        (Lab("lab/grpo", iterations=28), Lab("lab/gspo", iterations=28)),
    ),
    Fault(
        "far_from_reference",
        "docs/curves.md, rate; verl issue 651: the KL rises without end",
        ("optimizer.learning_rate=3e-3",),
        (Lab("lab/grpo", WITH_KL), Lab("quickstart_grounding", WITH_KL)),
        ("optimizer.learning_rate=1e-2",),
    ),
    Fault(
        "gradients_skipped",
        "verl issue 1197 and EasyR1 issue 307: the norm of the gradient is NaN",
        (ROOTED,),
        (Lab("lab/refl"), Lab("lab/draft")),
    ),
    Fault(
        "no_gradient",
        "ms-swift issue 5890: the norm of the gradient is 0 although rewards have spread",
        ("rewards=[{name: point_in_box, weight: 1.0e-30}]",),
        (Lab("lab/grpo", ("advantage={name: rloo}",), 2), Lab("lab/mix_grpo", ("advantage={name: rloo}",), 2)),
        ("rewards=[{name: shapes, weight: 1.0e-30}]",),
    ),
    Fault(
        "rewards_fail",
        "verl-omni pull request 366: a judge that fails became a score of 0, which nobody could tell from a bad sample",
        (paid_by("often_fails"),),
        (
            Lab("lab/grpo", ("scoring.max_failed_share=0.5",)),
            Lab("lab/mix_grpo", ("scoring.max_failed_share=0.5",)),
        ),
        (paid_by("image_often_fails"),),
    ),
    Fault(
        "groups_missing",
        "DAPO's dynamic sampling, arXiv 2503.14476: prompts run out of groups that teach",
        FEW_WANTED,
        (Lab("lab/grpo"), Lab("lab/mix_grpo")),
    ),
    Fault(
        "both_fall",
        "trl issue 800, OpenRLHF issue 1054, LlamaFactory issue 7643: rewards of chosen and rejected both fall",
        ("optimizer.learning_rate=1e-3",),
        (Lab("lab/flow_dpo"), Lab("lab/spin")),
    ),
    Fault(
        "rewards_are_slow",
        "open-r1 issue 161 and trl issue 3574: where does the time go?",
        (paid_by("slow"),),
        (Lab("lab/grpo"), Lab("lab/mix_grpo")),
        (paid_by("image_slow"),),
    ),
    Fault(
        "environments_are_slow",
        "RLinf issue 712 and SimpleVLA-RL issue 37: rollouts wait for the steps of environments",
        ("modality.environment={name: tests.diagnosis.planted_worlds:SlowScreens}",),
        (Lab("quickstart_agent"), Lab("lab/turns_rloo")),
    ),
    Fault(
        "memory_grows",
        "Mini-o3 issue 23 and RLinf issue 264: memory rises step by step until there is none",
        (paid_by("leaking"),),
        (Lab("lab/grpo", iterations=12), Lab("lab/mix_grpo", iterations=12)),
    ),
    Fault(
        "learning_rate_too_high",
        "one step for each rollout, whose ratio is 1: quickstarts, Flow-GRPO; flow_grpo issue 186",
        ("optimizer.learning_rate=2e-3",),
        (Lab("lab/flow_grpo"), Lab("quickstart_grounding")),
        ("optimizer.learning_rate=3e-3",),
    ),
    Fault(
        "ratio_off_at_start",
        "DanceGRPO issues 45 and 114, trl issue 6789: the ratio is not 1 before the first update",
        (f"{POLICIES}:Dropping",),
        (Lab("lab/grpo"), Lab("lab/mix_grpo")),
        (f"{POLICIES}:SampledOtherwise",),
    ),
    Fault(
        "reference_differs_at_start",
        "trl issue 3194, DeepSpeedExamples issue 412: a KL above 0 in the first step, of an adapter that only one has",
        (f"{POLICIES}:OtherReference",),
        (Lab("lab/grpo", WITH_KL), Lab("lab/mix_grpo", ("loss.kl_coef=1.0e-6",))),
        (f"{POLICIES}:OtherReferenceOfImages",),
    ),
    Fault(
        "gradient_is_noise",
        "open-r1 issues 436 and 474: the reward does not rise, with 1 prompt a step",
        (paid_by("noise"),),
        (Lab("lab/grpo"), Lab("quickstart_grounding")),
    ),
    Fault(
        "tensors_without_gradient",
        "mlx-lm-lora issue 55: adapters that the loss never reaches, saved as trained",
        (f"{POLICIES}:TrainsUnused",),
        (Lab("lab/flow_grpo"), Lab("lab/nft")),
    ),
    Fault(
        "images_shrunk",
        "ScreenSpot-Pro, arXiv 2504.07981: large screenshots, small targets",
        ("modality.max_pixels=2000",),
        (Lab("lab/grpo"), Lab("quickstart_grounding")),
    ),
    Fault(
        "rollouts_worse_than_evaluation",
        "flow_grpo issue 182: training samples by other means than the evaluation, and what they give is noise",
        ("sampler.temperature=4.0",),
        (Lab("lab/grpo"), Lab("quickstart_grounding")),
    ),
    Fault(
        "warmup_too_long",
        "Search-R1 issue 28: a warm-up of 0.95 of the run; prime-rl issue 968: of all of it",
        ("optimizer.warmup=60",),
        (Lab("lab/grpo"), Lab("lab/mix_grpo")),
    ),
    Fault(
        "batch_below_recipe",
        "DanceGRPO issue 45: fewer GPUs, the recipe's learning rate",
        ("prompts_per_iteration=4",),
        (Lab("lab/grpo"), Lab("lab/mix_grpo")),
    ),
    Fault(
        "nothing_is_shared",
        "flow_grpo issue 7: does a group begin from one latent, or from many?",
        ("sampler.share_noise=false",),
        (Lab("lab/flow_grpo_fast", LATE), Lab("lab/motion_flow_grpo_fast", LATE)),
    ),
    Fault(
        "nothing_is_shared",
        "modality.sharing: a group's prompt with its image is computed for every answer, as trainers of others do",
        ("modality.sharing=none",),
        (Lab("lab/grpo"), Lab("quickstart_grounding")),
    ),
    Fault(
        "samples_degrade",
        "docs/curves.md, jpeg: pictures become empty while the reward rises",
        ("rewards=[{name: jpeg_size}]",),
        (Lab("quickstart", iterations=2), Lab("lab/flow_grpo", iterations=2)),
    ),
    Fault(
        "reward_follows_length",
        "Singhal et al. 2023, arXiv 2310.03716: length is most of what a reward model pays for",
        LONGER,
        (Lab("lab/grpo", WARM), Lab("quickstart_grounding", WARM)),
    ),
)
