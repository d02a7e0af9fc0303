"""Everything heavy that a run of the lab imports, for the process that the runs of `process_runs.py` are forked from."""

import diffusers.loaders.peft
import diffusers.models.autoencoders.autoencoder_kl
import diffusers.models.transformers.transformer_sd3
import diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3
import diffusers.schedulers.scheduling_flow_match_euler_discrete
import peft
import transformers.models.clip.modeling_clip
import transformers.models.clip.tokenization_clip

import mmrl.modalities.sd3
import mmrl.run
import mmrl.tracking
