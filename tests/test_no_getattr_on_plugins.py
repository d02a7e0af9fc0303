"""What a plug-in can do stands in its declaration or in a protocol: nobody asks it by the name of an attribute."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("mmrl", "modalities", "rewards", "samplers")
LOADER = "plugins"  # builds plug-ins of a user's own, of which nothing is known before
ASKING = {"getattr", "hasattr", "attrgetter"}

# Functions that ask something else than a plug-in, by what they ask: module, class if any, and function.
ALLOWED: dict[str, str] = {
    "our own dataclasses, field by field, and sections of a config by the name of a kind": """
        assembly.build.build commands.finished._summary core.data.Outputs.filled
        core.data.Outputs.join core.data.Outputs.num_samples core.data.Outputs.select
        modalities.flow.sized_rollouts._joined
        core.reward_batches._moved core.reward_batches.check_needs labs.shapes.pairs.pairs
        modalities.flow.decisions.FlowDecisions.join
        modalities.flow.trajectory.Trajectory.from_the_start modalities.flow.trajectory.Trajectory.join
        modalities.flow.trajectory.Trajectory.join.widened parsing.actions.action.Action.parts
        plans.offline.OfflinePlan._of_online rewards.base.wrapper.RewardWrapper.inner_rewards
        rewards.base.wrapper.RewardWrapper.tiny rewards.wrappers.cached._name
        rewards.wrappers.python.Python._arguments scoring.calls._versions
        core.wire.write_request core.wire._item_message core.wire._read_outputs scoring.batching._shape_of
    """,
    "what weights say, by the name of the weights": """
        losses.base.decisions.DecisionLoss.divergence losses.base.denoising.DenoisingLoss.penalties
        losses.base.log_ratios.AnchoredLoss.compare losses.dgpo.Dgpo.measure
        losses.diffusion_dpo.DiffusionDpo.measure losses.prdp.Prdp.compare training.update._add_entropy
    """,
    "models, processors and pipelines of transformers and diffusers, and modules of torch": """
        labs.edits.pretrain.train_flow rewards.base.networks.value_head.load_headed
        modalities.encoding.deepstack.use_places
        modalities.encoding.encoded_files._add_network modalities.encoding.encoded_files._add_tokenizer
        modalities.encoding.families.unread modalities.encoding.families.video_clock
        modalities.encoding.positions.rope_positions
        modalities.tokens.vllm.prompts.question_of modalities.tokens.vllm.tiny_features._positions
        modalities.tokens.vllm.tiny_features._tensor
        modalities.encoding.prompt_encoder.PromptEncoder._chat_template
        modalities.encoding.prompt_encoder.PromptEncoder._check_context
        modalities.encoding.prompt_encoder.PromptEncoder._encoded
        modalities.encoding.prompt_encoder.PromptEncoder._token_types
        modalities.encoding.prompt_encoder.PromptEncoder.set_pixels modalities.encoding.validation._tokens
        modalities.flow.decoding_memory._measured modalities.language.footprint._features
        modalities.language.footprint.footprint_of
        modalities.loading.architectures.Part.make modalities.loading.architectures.Part.setting
        modalities.vision_language.VisionLanguage._set_up
        modalities.flow.diffusers_policy.DiffusersPolicy.encoders_on_device
        modalities.flow.diffusers_policy.DiffusersPolicy.modules
        modalities.flow.diffusers_policy.PipelinePolicy.cuts
        modalities.flow.diffusers_policy.PipelinePolicy.num_read
        modalities.flow.diffusers_policy.PipelinePolicy.open
        modalities.flow.diffusers_policy.PipelinePolicy.trained_network
        modalities.flow.diffusers_policy._set_attention modalities.flow.driven.arguments.Arguments.of
        modalities.flow.driven.encoding._decoded
        modalities.flow.driven.encoding._latents_of modalities.flow.driven.encoding._map_of
        modalities.flow.driven.encoding._mean_of
        modalities.flow.driven.modular._with_gradients modalities.flow.driven.opening.networks_of
        modalities.flow.driven.opening.open_pipeline modalities.flow.driven.paused_call._body
        modalities.flow.driven.pipeline.DrivenPipeline._call_network
        modalities.flow.driven.probing._absent_masks modalities.flow.driven.remembered.Remembered.install
        modalities.flow.driven.remembered._BlockStandIn.__getattr__
        modalities.flow.driven.remembered._VaeStandIn.encode modalities.flow.driven.remembered._content
        modalities.flow.driven.quiet.without_bars
        modalities.flow.driven.rows.fingerprint modalities.flow.driven.stand_ins.Loop.grid
        modalities.flow.driven.stand_ins.NetworkStandIn.__getattr__
        modalities.flow.driven.stand_ins.PartStandIn.__getattr__
        modalities.flow.driven.stand_ins.scheduler_stand_in.set_timesteps
        modalities.flow.variance_preserving.last_level
        modalities.gui.Gui._screen modalities.language.own_forward._OwnForward._logits
        modalities.loading.adapted_layers._is_attention modalities.loading.exporting._is_saved_by
        modalities.loading.lora.Lora.add_to modalities.loading.quantise.quantised_layers
        modalities.loading.vision_language._check_processor modalities.tiny.grids._glm
        modalities.tiny.pipelines.modular.assemble_modular modalities.tiny.pipelines.parts.assemble
        modalities.tiny.pipelines.parts.language modalities.tiny.pipelines.parts.t5 modalities.tiny.qwen._processor
        modalities.tiny.qwen._qwen3_5 modalities.tiny.tiled._idefics3
        modalities.tiny.text.randomise modalities.tokens.attention.use_flex modalities.tokens.attention._switch
        modalities.encoding.segment_attention.takes_segments modalities.encoding.tower.Tower._features
        modalities.encoding.tower.sized
        modalities.tokens.backbone.Backbone._kinds_of_layers modalities.tokens.backbone.Backbone.num_axes
        modalities.tokens.prefix_packing._masks modalities.video.Video._frame_size
        modalities.video.Video._set_up modalities.video.Video.clips_usage
        modalities.vision_language.VisionLanguage.head modalities.vision_language.VisionLanguage.usage
        modalities.encoding.network._without_head modalities.encoding.network.network_of
        modalities.language.probing._short_windows modalities.language.probing.image_tokens
        rewards.base.networks.vlm.load_vlm
        training.divergence.check_weights training.sharding.shard
    """,
    "events of callbacks, which have a base class, and names that the package imports when they are used": """
        __init__.__getattr__ training.callbacks.Callbacks.call training.callbacks._check_call
    """,
    "modules of Python, and functions and classes of a user's own by their names": """
        commands.listing._lab environments.base.gymnasium_actions.of_the_user
        rewards.wrappers.python._imported system.errors.place_in
    """,
    "what datasets, worlds, functions and losses of a user's own return": """
        environments.base.gymnasium_wrapper.WorldEnv.action_values environments.gymnasium._feed
        interop.pictures interop.verl._PromptFields._media modalities.language.environment_workers.checked
        plans.offline._is prompts.row_pictures.content_of prompts.stream.PromptStream._digest_by
        prompts.stream._prompt_of rewards.wrappers.python.Python._number rewards.wrappers.python._length
        scoring.standalone.without_arrays core.wire._plain training.update._refuse_other_terms
    """,
    "stand-ins, which pass on whatever they are asked for": """
        commands.instrumentation.Instrumented.__getattr__ core.actors._Holder.call system.progress_bars.Screen.__init__
        system.terminal.PlainStream.__getattr__ system.terminal.guard_streams
    """,
}


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


@cache
def places() -> set[str]:
    """Where any file but the loader asks for attributes by name: module without `mmrl.`, class if any, and function."""
    files = {file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py") if file.stem != LOADER}
    named = {file: ".".join(file.relative_to(ROOT).with_suffix("").parts).removeprefix("mmrl.") for file in files}
    named = {file: name.removesuffix(".__init__") for file, name in named.items()}
    sources = {file: file.read_text("utf-8") for file in files}
    return {
        place
        for file, source in sources.items()
        if any(word in source for word in ASKING)  # few do, and to parse is slow
        for place in asking(ast.parse(source), named[file])
    }


def allowed() -> set[str]:
    return {place for names in ALLOWED.values() for place in names.split()}


@pytest.mark.slow
def test_nothing_new_asks_a_plug_in_for_an_attribute_by_name() -> None:
    new = places() - allowed()
    assert not new, (
        f"read a declaration or use isinstance with a protocol (tests/core/test_declarations.py): {sorted(new)}"
    )


def test_what_is_done_leaves_the_lists() -> None:
    gone = allowed() - places()
    assert not gone, f"these ask no more, take them out of the lists: {sorted(gone)}"


def test_the_walk_sees_each_way_of_asking() -> None:
    source = "class A:\n    def f(self, x):\n        return operator.attrgetter('a')(x), hasattr(x, 'b')\n"
    assert set(asking(ast.parse(source), "file")) == {"file.A.f"}
    assert list(asking(ast.parse("getattr(1, 'a')"), "file")) == ["file"]
