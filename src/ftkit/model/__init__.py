"""Plan a model, build it empty, fill it block by block.

How `run.py` uses this package, on any backend:

    plan = plan_model(recipe.model, recipe.quantization, recipe.adapter, tokenizer_length=len(tokenizer))
    net = build_net(plan, dtype=torch.bfloat16)                 # transformers' own class, on meta, adapters in place
    checkpoint_blocks(net, enabled=True)                        # activation checkpointing
    fill_root = load_net(net, plan, backend.place_block, device=backend.world.device, dtype=torch.bfloat16, seed=42)
    module, optimizer = backend.finish(net, fill_root, build_groups, build_optimizer, max_norm)
    logits = module(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=rows,
                    cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=longest, max_length_k=longest).logits
"""
