"""Packed rows under torch's flex_attention: its mask is the tree's, and what it gives is what the plain batch gives."""

import importlib
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from transformers.integrations import flex_attention as of_transformers

from mmrl.core.contracts import ConfigError
from mmrl.core.views import DecisionView
from mmrl.core.weights import whole
from mmrl.modalities.encoding.segment_attention import NAME
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.modalities.tokens import attention, prefix_packing
from mmrl.modalities.tokens.attention import FLEX, block_mask, bucket, use_flex
from mmrl.modalities.tokens.backbone import ONE_IMAGE, Answers, Sight
from mmrl.modalities.tokens.prefix_packing import PADDING, PROMPT, PackedRows
from mmrl.training.processes import Processes
from mmrl.training.sharding import shard
from tests import vision_twins
from tests.modalities.test_vision_language_sharing import TOLERANCE, assert_equal, evaluated, plain, ragged, shared
from tests.parameters import in_one_test
from tests.process_runs import in_processes

CALLS = torch.arange(9)
pytestmark = pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")  # transformers'


def let_through(patch: pytest.MonkeyPatch) -> None:
    """Lets flex_attention run and be differentiated on a CPU: torch refuses it there, though only the kernel cannot."""
    patch.setattr(flex, "_validate_device", lambda *_: None)
    patch.setattr(flex, "_WARNINGS_SHOWN", {*flex._WARNINGS_SHOWN, "flex_attention_performance"})  # it is slow
    patch.setattr(attention, "_WITHOUT_BACKWARD", ())


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """torch's flex_attention and its masks as they are written, with gradients."""
    with pytest.MonkeyPatch.context() as patch, torch.compiler.set_stance("force_eager"):
        let_through(patch)
        yield


def random_rows(seed: int, longest_prompt: int, longest_answer: int) -> PackedRows:
    """Rows of a prompt with images and ragged answers, padded on either side."""
    pick = random.Random(seed)
    rows: list[list[tuple[int, int, int]]] = []  # member, step and kind of every token
    for _ in range(pick.randint(1, 3)):
        prompt = pick.randint(1, longest_prompt)
        row = [(PROMPT, step, int(pick.random() < 0.6)) for step in range(prompt)]
        for number in range(pick.randint(0, 5)):
            row += [(number, prompt + step, 0) for step in range(pick.randint(0, longest_answer))]
        rows.append(row)
    longest = max(map(len, rows))
    is_left = pick.random() < 0.5
    for row in rows:
        padding = [(PADDING, 0, 0)] * (longest - len(row))
        row[:] = padding + row if is_left else row + padding
    member, step, kinds = torch.tensor(rows).unbind(-1)
    return PackedRows(member, member[None], kinds, member, step)


def slowly(rows: PackedRows, window: int | None, images_see_ahead: bool) -> Tensor:
    """The tree mask, place by place."""
    count, length = rows.member.shape
    found = torch.zeros(count, length, length, dtype=torch.bool)
    for row in range(count):
        member, step, kind = (table[row].tolist() for table in (rows.member, rows.step, rows.token_types))
        for query in range(length):
            for key in range(length):
                own = member[key] in (PROMPT, member[query])
                near = window is None or step[query] - step[key] < window
                low, high = sorted((query, key))
                one_image = images_see_ahead and all(kind[place] == 1 for place in range(low, high + 1))
                sees = member[key] != PADDING and ((own and step[key] <= step[query] and near) or one_image)
                found[row, query, key] = sees or query == key
    return found


@pytest.mark.parametrize(("window", "ahead"), [(None, False), (7, False), (None, True), (7, True)])
@pytest.mark.parametrize("seed", range(4))
def test_the_mask_of_flex_attention_is_the_tree_mask(seed: int, window: int | None, ahead: bool) -> None:
    rows = random_rows(seed, 16, 8)
    count, length = rows.member.shape
    sight = Sight(ONE_IMAGE, ONE_IMAGE) if ahead else None
    dense = flex.create_mask(rows.rule(window, sight), count, 1, length, length, device="cpu")[:, 0]
    assert torch.equal(dense, rows.may_see(window, sight))
    assert torch.equal(dense, slowly(rows, window, ahead))


@pytest.mark.parametrize("pairs", [1, 60, 1000])
def test_a_mask_made_in_blocks_of_queries_is_the_tree_mask(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_packing, "PAIRS_AT_ONCE", pairs)
    for seed in range(4):
        rows = random_rows(seed, 16, 8)
        assert torch.equal(rows.may_see(7, Sight(ONE_IMAGE, ONE_IMAGE)), slowly(rows, 7, True))


def test_buckets_are_few_and_little_longer_than_the_rows() -> None:
    lengths = [bucket(length) for length in range(1, 2**15 + 1)]
    assert all(found >= length and found % 128 == 0 for length, found in enumerate(lengths, 1))
    assert all(found < 1.125 * length + 1 for length, found in enumerate(lengths, 1) if length >= 1024)
    assert len(set(lengths[1023:])) == 8 * 5 + 1  # 1,024 and eight in each octave up to 32,768
    assert bucket(1) == bucket(128) == 128 and bucket(129) == 256 and bucket(2049) == 2304


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_for_flex_attention_are_padded_to_a_bucket_and_places_follow(side: Any) -> None:
    policy = vision_twins.policy(sharing="packed")
    backbone, trace = policy.backbone, plain("qwen2_5_vl", "full")[1].trace
    answers = Answers(torch.tensor([0, 0, 1, 1, 2]), trace.completions.tokens[:5], trace.completions.length[:5])
    own, places = prefix_packing._pack(backbone, trace.prompts, answers, side)
    backbone.model.config.get_text_config()._attn_implementation = FLEX
    rows, moved = prefix_packing._pack(backbone, trace.prompts, answers, side)
    length = own.tokens.shape[1]
    assert rows.tokens.shape[1] == bucket(length) > length
    for table in ("tokens", "member", "step", "token_types"):
        assert torch.equal(getattr(rows, table).flatten()[moved], getattr(own, table).flatten()[places])
    assert int((rows.member != PADDING).sum()) == int((own.member != PADDING).sum())


def test_a_large_dense_mask_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(prefix_packing, "DENSE", 100)
    prefix_packing._warn_of_size.cache_clear()
    rows = random_rows(0, 16, 8)
    for _ in range(2):
        prefix_packing._as_taken("sdpa", rows, None, None)
    assert [record.message for record in caplog.records] == [
        f"modality.sharing: {len(rows.tokens)} packed rows of about 128 tokens have a dense mask of 0.0 GB, and all "
        "their pairs are computed; on a GPU set modality.attention.update to flex_attention, or updates.micro_batch "
        "lower"
    ]


@pytest.mark.slow  # torch traces both functions
def test_rows_of_twelve_lengths_make_at_most_four_graphs() -> None:
    benchmark = importlib.import_module("benchmarks.attention")  # for mypy, files in benchmarks/ have names without it
    lengths, of_mask, of_attention = benchmark.compilations(is_after=True)
    assert lengths < len(benchmark.LENGTHS) == 12 and of_mask + of_attention <= 4


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("seed", range(4))
def test_a_block_is_computed_where_one_of_its_places_is_seen(seed: int, window: int | None, uncompiled: None) -> None:
    rows = random_rows(seed, 300, 150)
    count, length = rows.member.shape
    blocks = block_mask(rows.rule(window), rows.tokens)
    assert blocks.shape == (count, 1, length, length)
    seen = torch.nn.functional.max_pool2d(rows.may_see(window)[:, None].float(), blocks.BLOCK_SIZE, ceil_mode=True)
    assert torch.equal(blocks.to_dense(), seen.to(torch.int32))


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_a_packed_row_gives_the_log_probs_entropies_and_gradients_of_the_plain_batch(
    family: str, uncompiled: None
) -> None:
    assert_equal(shared(family, "full", sharing="packed", attention=FLEX), plain(family, "full")[2])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_checkpointing_changes_nothing(family: str, uncompiled: None) -> None:
    found = shared(family, "full", attention=FLEX, sharing="auto", gradient_checkpointing=True)
    assert_equal(found, plain(family, "full")[2])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_a_packed_row_gives_what_it_gives_under_sdpa(family: str, uncompiled: None) -> None:
    found = shared(family, "lora", sharing="packed", attention=FLEX)
    assert_equal(found, shared(family, "lora", sharing="packed"))


@pytest.mark.slow
def test_every_layer_of_the_language_model_runs_it_and_none_of_the_tower(
    uncompiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = vision_twins.policy(attention=FLEX, sharing="packed")
    assert policy.sharing_used == "packed"
    seen: list[Any] = []
    run: Any = of_transformers.compile_friendly_flex_attention

    def noted(*tensors: Tensor, **settings: Any) -> Any:
        seen.append(settings["block_mask"])
        return run(*tensors, **settings)

    monkeypatch.setattr(of_transformers, "compile_friendly_flex_attention", noted)
    policy.forward(plain("qwen2_5_vl", "full")[1], DecisionView(CALLS))
    model: Any = policy.modules()["model"]
    assert len(seen) == model.config.get_text_config().num_hidden_layers
    assert len({id(mask) for mask in seen}) == 1 and isinstance(seen[0], flex.BlockMask)
    assert model.config.vision_config._attn_implementation == NAME


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_answers_are_drawn_and_shared_by_a_cache_under_it_too(family: str, uncompiled: None) -> None:
    expected = vision_twins.rollout(vision_twins.policy(family))
    policy = vision_twins.policy(family, attention=FLEX, sharing="cache")
    drawn = vision_twins.rollout(policy)
    assert torch.equal(drawn.trace.completions.tokens, expected.trace.completions.tokens)
    torch.testing.assert_close(drawn.trace.completions.log_prob, expected.trace.completions.log_prob, atol=1e-5, rtol=0)
    found = shared(family, "full", sharing="cache", attention=FLEX)
    assert_equal(found, plain(family, "full")[2])


@pytest.mark.slow  # compiles a kernel, half a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_the_kernel_compiled_for_a_cpu_gives_the_log_probs_of_the_plain_batch(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, drawn, expected = plain(family, "full")
    monkeypatch.setattr(attention, "_WITHOUT_BACKWARD", ())
    policy = vision_twins.policy(family, attention=FLEX, sharing="packed")
    torch.compiler.reset()  # for other sizes seen before it would be compiled for all, which torch 2.15 cannot
    with torch.no_grad():
        found = policy.forward(drawn, DecisionView(CALLS))
    assert_equal({"log_prob": found.values}, {"log_prob": expected["log_prob"]})


def _in_shards(folder: str, out: Path) -> None:
    """Writes log-probs and gradients of a packed row under checkpointing, the weights in two parts."""
    engine = Processes("float32", "full")
    drawn = ragged(vision_twins.rollout(vision_twins.policy(model=folder)))
    with pytest.MonkeyPatch.context() as patch, torch.compiler.set_stance("force_eager"):
        let_through(patch)
        policy = vision_twins.policy(model=folder, attention=FLEX, sharing="packed", gradient_checkpointing=True)
        policy._placement = engine.placement  # of processes that share the weights
        policy.weights.shard(shard([*policy.modules().values()], policy.networks(), policy.weights.parameters, 2))
        found = {name: whole(tensor).contiguous() for name, tensor in evaluated(policy, drawn, CALLS).items()}
    if engine.is_main:
        save_file(found, out)


@pytest.mark.slow  # two processes
def test_shards_of_the_weights_give_the_same_under_checkpointing(tmp_path: Path) -> None:
    in_processes(partial(_in_shards, str(vision_twins.twin("qwen2_5_vl")), tmp_path / "found"), 2)
    found = load_file(tmp_path / "found")
    # both processes evaluate the same answers, and gradients are summed
    halved = {name: found[name] / 2 for name in found.keys() - {"log_prob", "entropy"}}
    assert_equal(found | halved, plain("qwen2_5_vl", "full")[2])


@pytest.mark.parametrize("settings", [{"sharing": "packed"}, {"gradient_checkpointing": True}, {"sharing": "cache"}])
def test_on_a_cpu_sdpa_takes_its_place_and_it_is_said(settings: dict[str, Any]) -> None:
    policy = vision_twins.policy(attention=FLEX, **settings)
    way = settings.get("sharing", "packed")
    assert policy.sharing_used == f"{way} (sdpa in place of flex_attention, which has no backward pass on cpu)"
    assert policy.sharing_mode == way
    assert_equal(evaluated(policy, plain("qwen2_5_vl", "full")[1], CALLS), plain("qwen2_5_vl", "full")[2])


def stub(device: str, supports: bool = True) -> Any:
    """As much of a model as is asked where its weights are."""
    text = SimpleNamespace(_attn_implementation="sdpa")
    config = SimpleNamespace(model_type="odd_vl", get_text_config=lambda: text)
    return SimpleNamespace(device=torch.device(device), config=config, _supports_attention_backend=supports)


@in_one_test(("device", "used"), [("cuda:1", True), ("xpu", True), ("cpu", False), ("mps", False)])
def test_the_device_of_the_weights_decides(device: str, used: bool) -> None:
    model = stub(device)
    assert use_flex(model, "odd") is used
    assert attention.attention_of(model) == (FLEX if used else "sdpa")
    assert bool(attention.not_as_requested(model, FLEX)) is not used


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="flex_attention does not fit 'odd': odd_vl has an attention of its own"):
        use_flex(stub("cuda", supports=False), "odd")


@pytest.mark.slow  # most of a second each, or more
def test_the_comparison_sees_a_mask_that_is_not_the_trees(uncompiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedRows, "rule", lambda *_: lambda row, head, query, key: query >= key)
    found = shared("qwen2_5_vl", "full", sharing="packed", attention=FLEX)["log_prob"]
    expected = plain("qwen2_5_vl", "full")[2]["log_prob"]
    assert float((found - expected).norm() / expected.norm()) > 100 * TOLERANCE
