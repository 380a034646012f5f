#!/usr/bin/env python3
"""Writes what PyTorch and transformers make of four tiny models, for our engine to equal. See README.md.

    python make.py [--check] [--out DIR]
"""
import argparse
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

VOCAB, HIDDEN, LAYERS, BATCH, SEQUENCE, STEPS = 97, 48, 2, 4, 32, 10
LEARNING_RATE, BETAS, EPSILON, DECAY, MAX_NORM = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
IGNORED = -1


def llama_spec(**changes):
    spec = dict(architecture="LLAMA", layers=LAYERS, hidden=HIDDEN, heads=6, kv_heads=2, head_dim=8, ffn=80,
                vocab=VOCAB, tied_head=False, qkv_bias=False, norm_epsilon=1e-5, rope_theta=10000.0)
    spec.update(changes)
    return spec


# ModelSpec messages in protobuf's JSON. The other facts of a case are in `main`.
SPECS = {
    "gpt2_tiny": dict(architecture="GPT2", layers=LAYERS, hidden=HIDDEN, heads=4, kv_heads=4, head_dim=12,
                      ffn=4 * HIDDEN, vocab=VOCAB, max_positions=SEQUENCE, tied_head=True, qkv_bias=True,
                      norm_epsilon=1e-5),
    "llama_tiny": llama_spec(),
    "llama3_tiny": llama_spec(tied_head=True, rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                original_max_positions=16)),
    "qwen2_tiny": llama_spec(tied_head=True, qkv_bias=True, norm_epsilon=1e-6),
}


def make_model(name, spec):
    if name == "gpt2_tiny":
        config = GPT2Config(vocab_size=VOCAB, n_positions=SEQUENCE, n_embd=HIDDEN, n_layer=LAYERS, n_head=spec["heads"],
                            activation_function="gelu_new", layer_norm_epsilon=spec["norm_epsilon"], resid_pdrop=0.0,
                            embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=True)
        return GPT2LMHeadModel._from_config(config, attn_implementation="eager")
    rope = dict(rope_type="default", rope_theta=spec["rope_theta"])
    if "rope_scaling" in spec:
        scaling = spec["rope_scaling"]
        rope.update(rope_type="llama3", factor=scaling["factor"], low_freq_factor=scaling["low_freq_factor"],
                    high_freq_factor=scaling["high_freq_factor"],
                    original_max_position_embeddings=scaling["original_max_positions"])
    common = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=spec["ffn"], num_hidden_layers=LAYERS,
                  num_attention_heads=spec["heads"], num_key_value_heads=spec["kv_heads"],
                  max_position_embeddings=SEQUENCE, rms_norm_eps=spec["norm_epsilon"],
                  tie_word_embeddings=spec["tied_head"], rope_parameters=rope)
    if name == "qwen2_tiny":
        return Qwen2ForCausalLM._from_config(Qwen2Config(use_sliding_window=False, **common),
                                             attn_implementation="eager")
    return LlamaForCausalLM._from_config(LlamaConfig(head_dim=spec["head_dim"], **common), attn_implementation="eager")


def randomize(model, generator):
    """Larger than a training start, so that every term of the arithmetic shows in the logits."""
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm_weight = parameter.dim() == 1 and key.endswith("weight")
            parameter.copy_(1.0 + 0.1 * noise if is_norm_weight else (0.15 if parameter.dim() == 2 else 0.1) * noise)


def gpt2_names(tensors):
    """Hugging Face's GPT-2 tensors under our names; Conv1D holds [in, out], we hold [out, in]."""
    out = {"embed.weight": tensors["transformer.wte.weight"], "positions.weight": tensors["transformer.wpe.weight"]}
    for i in range(LAYERS):
        theirs, ours = f"transformer.h.{i}.", f"layers.{i}."
        for part in ("weight", "bias"):
            out[ours + "attn_norm." + part] = tensors[theirs + "ln_1." + part]
            out[ours + "mlp_norm." + part] = tensors[theirs + "ln_2." + part]
            for q_k_v, piece in zip("qkv", tensors[theirs + "attn.c_attn." + part].split(HIDDEN, dim=-1)):
                out[f"{ours}{q_k_v}.{part}"] = piece.t()
            for to, source in (("o", "attn.c_proj"), ("up", "mlp.c_fc"), ("down", "mlp.c_proj")):
                out[f"{ours}{to}.{part}"] = tensors[f"{theirs}{source}.{part}"].t()
    for part in ("weight", "bias"):
        out["final_norm." + part] = tensors["transformer.ln_f." + part]
    return out


def llama_names(tensors):
    """Hugging Face's Llama and Qwen2 tensors under our names."""
    fixed = {"model.embed_tokens.weight": "embed.weight", "model.norm.weight": "final_norm.weight",
             "lm_head.weight": "head.weight"}
    within = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm", "self_attn.q_proj": "q",
              "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o", "mlp.gate_proj": "gate",
              "mlp.up_proj": "up", "mlp.down_proj": "down"}
    out = {}
    for key, tensor in tensors.items():
        if key in fixed:
            out[fixed[key]] = tensor
            continue
        _, _, layer, rest = key.split(".", 3)
        module, part = rest.rsplit(".", 1)
        out[f"layers.{layer}.{within[module]}.{part}"] = tensor
    return out


def put(out, prefix, name, tensors):
    named = gpt2_names(tensors) if name == "gpt2_tiny" else llama_names(tensors)
    for key, tensor in named.items():
        out[prefix + key] = tensor.detach().clone().contiguous()


def make_batch(generator, with_ignored):
    tokens = torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1), generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if with_ignored:  # A different share in each row, so that a mean of per-row means is not the loss.
        keep = torch.rand((BATCH, SEQUENCE), generator=generator) >= torch.tensor([[0.0], [0.1], [0.4], [0.8]])
        targets = torch.where(keep, targets, IGNORED)
    return inputs, targets


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED,
                                             reduction="sum") / (targets != IGNORED).sum()


def make_starts(generator):
    """Where each token's document starts in its row: one row is one document, one has documents of one token."""
    starts = torch.zeros((BATCH, SEQUENCE), dtype=torch.long)
    for row, share in enumerate((0.0, 0.1, 0.3, 1.0)):
        is_start = torch.rand(SEQUENCE, generator=generator) < share
        is_start[0] = True
        starts[row] = torch.where(is_start, torch.arange(SEQUENCE), 0).cummax(0).values
    starts[3, 16:] = 16
    return starts


def make_documents(name, spec, seed):
    """Rows of several documents: each token sees its own, positions count from its start, first tokens are no target."""
    generator = torch.Generator().manual_seed(seed)
    model = make_model(name, spec).float()
    model.train()
    randomize(model, generator)
    tokens, targets = make_batch(generator, False)
    starts = make_starts(torch.Generator().manual_seed(100 + seed))
    place = torch.arange(SEQUENCE)
    targets[:, :-1][starts[:, 1:] == place[1:]] = IGNORED
    seen = (place[None, None, :] >= starts[:, :, None]) & (place[None, None, :] <= place[None, :, None])
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]
    logits = model(tokens, attention_mask=mask, position_ids=place[None, :] - starts).logits
    loss = loss_of(logits, targets)
    loss.backward()
    out = {"tokens": tokens.int(), "targets": targets.int(), "starts": starts.int(),
           "logits": logits.detach().clone(), "loss": loss.detach().reshape(1)}
    put(out, "grad/", name, {key: p.grad for key, p in model.named_parameters()})
    return out


def train(model, batches):
    """Ten AdamW steps; returns the loss and the gradient norm before clipping of each."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([
        dict(params=[p for p in parameters if p.dim() == 2], weight_decay=DECAY),
        dict(params=[p for p in parameters if p.dim() != 2], weight_decay=0.0),
    ], lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    losses, norms = [], []
    for inputs, targets in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(inputs).logits, targets)
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters))
        scale = min(1.0, MAX_NORM / (norm.item() + 1e-6))
        for parameter in parameters:
            parameter.grad.mul_(scale)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return torch.tensor(losses), torch.tensor(norms, dtype=torch.float32)


def make_case(name, spec, seed):
    generator = torch.Generator().manual_seed(seed)
    model = make_model(name, spec).float()
    model.train()  # No dropout anywhere, so this changes nothing but says what is meant.
    randomize(model, generator)
    ignored = name == "llama_tiny"
    tokens, targets = make_batch(generator, ignored)
    batches = [make_batch(generator, ignored) for _ in range(STEPS)]

    out = {"tokens": tokens.int(), "targets": targets.int(),
           "step_tokens": torch.stack([b[0] for b in batches]).int(),
           "step_targets": torch.stack([b[1] for b in batches]).int()}
    put(out, "weights/", name, dict(model.named_parameters()))
    logits = model(tokens).logits
    loss = loss_of(logits, targets)
    loss.backward()
    out["logits"], out["loss"] = logits.detach().clone(), loss.detach().reshape(1)
    put(out, "grad/", name, {key: p.grad for key, p in model.named_parameters()})
    out["step_loss"], out["grad_norm"] = train(model, batches)
    put(out, "weights_after/", name, dict(model.named_parameters()))
    return out


def check(case, path):
    """True if the stored file says the same up to the last bits that another processor may round differently."""
    stored, ok = load_file(path), True
    if stored.keys() != case.keys():
        print(f"{path}: tensors differ: {sorted(stored.keys() ^ case.keys())}", file=sys.stderr)
        return False
    for key, tensor in case.items():
        # The Adam steps of a gradient that is nothing but rounding (gpt2's k.bias) have no digits to compare.
        tolerance = 1e-2 if key.startswith("weights_after/") and key.endswith("k.bias") else 1e-5
        if not torch.allclose(stored[key].double(), tensor.double(), rtol=tolerance, atol=tolerance):
            print(f"{path}: {key} differs", file=sys.stderr)
            ok = False
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the files in DIR instead of writing")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    ok = True
    for seed, (name, spec) in enumerate(SPECS.items(), start=1):
        case = make_case(name, spec, seed)
        path = options.out / f"{name}.safetensors"
        files = {path: case}
        if name in ("gpt2_tiny", "llama_tiny"):
            files[options.out / f"{name}.documents.safetensors"] = make_documents(name, spec, seed)
        if options.check:
            ok = all([check(tensors, file) for file, tensors in files.items()]) and ok
            continue
        for file, tensors in files.items():
            save_file(tensors, file)
        path.with_suffix(".json").write_text(json.dumps(spec, indent=2) + "\n")
        print(f"{name}: loss {case['loss'].item():.6f}, after ten steps {case['step_loss'][-1].item():.6f}, "
              f"{path.stat().st_size / 1e3:.0f} kB")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
