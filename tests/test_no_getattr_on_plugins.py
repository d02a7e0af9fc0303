"""What a plug-in can do stands in its declaration or in a protocol: nobody asks it by the name of an attribute."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("mmrl", "modalities", "rewards", "samplers")
LOADER = "plugins"  # builds plug-ins of a user's own, of which nothing is known before
ASKING = {"getattr", "hasattr", "attrgetter"}

# Functions that ask something else than a plug-in, by what they ask: the name of the file and of the function.
ALLOWED: dict[str, str] = {
    "our own dataclasses, field by field, and sections of a config by the name of a kind": """
        _held.Holder.held _held.Holder.tiny _trajectory.Trajectory.from_the_start _trajectory.Trajectory.join
        _trajectory.Trajectory.join.widened _tree.Decided.join action.Action.parts asking._versions cached._name
        finished._summary given.GivenPlan._of_drawn outputs.Outputs.join outputs.Outputs.select pairs.pairs
        parts.build python.Python._wanted reward_batches.check_needs
    """,
    "what weights say, by the name of the weights": """
        _decisions.DecisionLoss.divergence _denoising.DenoisingLoss.penalties _log_ratios.AnchoredLoss.compare
        dgpo.Dgpo.measure diffusion_dpo.DiffusionDpo.measure prdp.Prdp.compare update._add_entropy
    """,
    "models, processors and pipelines of transformers and diffusers, and modules of torch": """
        _attention.use_flex _backbone.Backbone.goes_by_the_mask _backbone.Backbone.num_axes
        _embeddings.load_embedder _encoder.PromptEncoder._chat_template _encoder.PromptEncoder._check_context
        _encoder.PromptEncoder._encode _encoder.PromptEncoder._token_types _encoder.PromptEncoder.set_pixels
        _families.unread _loading._check_processor _own_forward._OwnForward._logits _packed._masks
        _pipeline.PipelinePolicy._load _pipeline.PipelinePolicy.cuts _pipeline.PipelinePolicy.encoders_on_device
        _pipeline.PipelinePolicy.num_read _pipeline.PipelinePolicy.trained_network _pipeline._set_attention
        _positions.rope_positions _refusals._tokens _tiny_grids._processor _tiny_text.randomise
        _variance_preserving.last_level _vlm.load_vlm divergence.check_weights gui.Gui._screen sharding.shard
        video.Video._frame_size video.Video._set_up video.Video.clips_usage
        vision_language.VisionLanguage._sharing vision_language.VisionLanguage.head
        vision_language.VisionLanguage.usage vision_language._language_name
    """,
    "modules of Python, and functions and classes of a user's own by their names": """
        _gymnasium_actions.of_the_user catalogue._lab errors.place_in python._imported readers.failures
    """,
    "what datasets, worlds, functions and losses of a user's own return": """
        _as_gymnasium.WorldEnv.action_values _pictures.content_of _worlds.checked given._is gymnasium._feed
        interop.pictures judging.without_arrays prompts.PromptStream._digest prompts._asked
        python.Python._number python._length update._refuse_other_terms verl._Reading._media
    """,
    "stand-ins, which pass on whatever they are asked for": """
        screen.Screen.__init__ spies.Spy.__getattr__ terminal.PlainStream.__getattr__ terminal.guard_streams
    """,
}
# Functions that still ask a plug-in; each leaves this list with its `getattr`.
TO_DO = """
        _decisions.DecisionLoss.__post_init__ _denoising.DenoisingLoss.__post_init__
        _flow.FlowPolicy.__post_init__ _held.Holder.adopt
        _held.Holder.load_state_dict _held.Holder.prepare _held.Holder.says _held.Holder.state_dict
        _held.Holder.tiny.twin _held.is_changing _lora.Lora.__post_init__ _steered.SteeredSampler.prepare
        _steered.SteeredSampler.tiny _synthetic.write _token_drawing.TokenDrawer.__post_init__
        _window.Window.__post_init__ agent.Agent.__post_init__ awm.Awm.__post_init__
        branch_grpo.BranchGRPO.__post_init__ checks._findings checks._twins correction.is_drawn_elsewhere
        costs.calls_per_pass dpo.Dpo.__post_init__ entropy_tree.EntropyTree.__post_init__
        geneval.Geneval.__post_init__ given.check_behaviour given.check_levels gmpo.Gmpo.__post_init__
        gradients.carries_back gradients.check_steps interop._check_reward kto.Kto.__post_init__
        pairs._check_comparison pairs._check_facts pairs._check_group_size pairs._check_model_folder
        pairs.example_plan parts.make_trainer prdp.Prdp.__post_init__ reg_grpo.RegGrpo.__post_init__
        reward_checks._is_relative sapo.Sapo.__post_init__ score_files._warn_without_tags scorers.build_scorer
        scoring.Scorer.prepare sharding.refuse_unshardable steering.prepare steering.reward_of steering.twin
        told.refuse_single_draws told.refuse_untold verl._follows_iteration video.Video.__post_init__
        vision_language.VisionLanguage.__post_init__
"""


def asking(tree: ast.AST, within: str) -> Iterator[str]:
    """Yields where `getattr`, `hasattr` or `attrgetter` are called: the file, the class if any, and the function."""
    for node in ast.iter_child_nodes(tree):
        is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else ""
            name = function.attr if isinstance(function, ast.Attribute) else name
            if name in ASKING:
                yield within
        yield from asking(node, f"{within}.{node.name}" if is_scope else within)  # type: ignore[attr-defined]


def places() -> set[str]:
    """Where any file but the loader asks for attributes by name; files are called by their names alone."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py") if file.stem != LOADER]
    named = {file: file.parent.name if file.stem == "__init__" else file.stem for file in files}
    return {place for file in files for place in asking(ast.parse(file.read_text("utf-8")), named[file])}


def allowed() -> set[str]:
    return {place for names in ALLOWED.values() for place in names.split()}


def test_nothing_new_asks_a_plug_in_for_an_attribute_by_name() -> None:
    new = places() - allowed() - set(TO_DO.split())
    assert not new, (
        f"read a declaration or use isinstance with a protocol (tests/core/test_declarations.py): {sorted(new)}"
    )


def test_what_is_done_leaves_the_lists() -> None:
    gone = (allowed() | set(TO_DO.split())) - places()
    assert not gone, f"these ask no more, take them out of the lists: {sorted(gone)}"


def test_the_walk_sees_each_way_of_asking() -> None:
    source = "class A:\n    def f(self, x):\n        return operator.attrgetter('a')(x), hasattr(x, 'b')\n"
    assert set(asking(ast.parse(source), "file")) == {"file.A.f"}
    assert list(asking(ast.parse("getattr(1, 'a')"), "file")) == ["file"]
