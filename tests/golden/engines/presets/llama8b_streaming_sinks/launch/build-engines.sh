#!/bin/sh
# the commands that trtkit build runs, paths relative to the build directory
set -eu
# target
trtllm-build \
  --checkpoint_dir checkpoints/target \
  --output_dir engines/target \
  --max_batch_size 4 \
  --max_input_len 4096 \
  --max_seq_len 8192 \
  --max_num_tokens 8192 \
  --opt_num_tokens 4 \
  --max_beam_width 1 \
  --max_prompt_embedding_table_size 0 \
  --kv_cache_type paged \
  --logits_dtype float32 \
  --bert_attention_plugin auto \
  --gpt_attention_plugin auto \
  --gemm_plugin fp8 \
  --gemm_swiglu_plugin disable \
  --fp8_rowwise_gemm_plugin disable \
  --nccl_plugin auto \
  --lora_plugin disable \
  --moe_plugin auto \
  --mamba_conv1d_plugin auto \
  --low_latency_gemm_plugin disable \
  --low_latency_gemm_swiglu_plugin disable \
  --context_fmha enable \
  --bert_context_fmha_fp32_acc disable \
  --remove_input_padding enable \
  --reduce_fusion disable \
  --user_buffer disable \
  --tokens_per_block 32 \
  --use_paged_context_fmha disable \
  --use_fp8_context_fmha enable \
  --multiple_profiles disable \
  --paged_state enable \
  --streamingllm enable \
  --use_fused_mlp enable \
  --pp_reduce_scatter disable \
  --dora_plugin disable \
  --norm_quant_fusion disable \
  --gemm_allreduce_plugin disable \
  --fuse_fp4_quant disable \
  --input_timing_cache timing.cache \
  --output_timing_cache timing.cache \
  --profiling_verbosity layer_names_only \
  --workers 1 \
  --log_level info
