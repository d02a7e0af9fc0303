"""Packs the weights of the head again when vLLM reloads a model on a CPU.

vLLM packs them once for its kernels of the CPU. With tied embeddings a reload would leave the old ones packed (0.32.0).
Runs in the environment of vLLM, as one of its plugins.
"""

from typing import Any


def register() -> None:
    """Is called by vLLM in each of its processes."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.model_executor.model_loader.reload import inplace

    finalize = inplace.finalize_layerwise_reload
    if getattr(finalize, "packs_heads", False):
        return

    def finalized(model: Any, model_config: Any) -> None:
        finalize(model, model_config)
        for layer in model.modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)

    finalized.packs_heads = True  # type: ignore[attr-defined]
    inplace.finalize_layerwise_reload = finalized
