"""The policy by which the groups of a prompt are planned, where samples may have several sizes."""

from mmrl.core.contracts import Modality, Sized
from mmrl.core.data import Prompt


def policy_for(policy: Modality, prompt: Prompt) -> Modality:
    """Returns the policy at the size of a prompt's samples; the policy itself where all have one size."""
    if not isinstance(policy, Sized):
        return policy
    sized: Modality = policy.sized(prompt)
    return sized
