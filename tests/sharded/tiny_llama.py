"""A small Llama of transformers, in one process and over the shards of its sequence."""

import torch

import regard

WATCH = {"statistics": ["induction", "duplicate_token", "distance", "sink"]}


def llama():
    """Llama with grouped queries and dropout 0, the same on every rank."""
    from transformers import LlamaConfig, LlamaForCausalLM

    regard.register_with_transformers()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, attn_implementation="regard",
    )  # fmt: skip
    return LlamaForCausalLM(config).double().train()


def inputs(*, padded):
    """Token ids of odd length with labels, of which some are ignored, and an attention mask."""
    ids = torch.randint(0, 50, (2, 45), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :5] = -100
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 37:] = 0
        labels[1, 37:] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def found(model, output, gather=lambda x: x):
    """Loss, logits, and the gradient of every parameter."""
    output.loss.backward()
    grads = {name: one.grad for name, one in model.named_parameters()}
    return {name: one.detach().numpy() for name, one in grads.items()} | {
        "loss": output.loss.detach().numpy(),
        "logits": gather(output.logits).detach().numpy(),
    }
