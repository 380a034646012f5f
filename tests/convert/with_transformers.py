#!/usr/bin/env python3
"""Weights both ways between transformers and us, compared by the logits that each gets.

    TELAR_CONVERT_VENV=DIR tests/convert/with_transformers.py

DIR is a virtual environment with torch, transformers, safetensors and numpy; one that is not there is made, by pip as
it is set up (a gigabyte). Without the variable the test is skipped: exit 77. Needs train_init_from_test and telar built.

Models that transformers makes and saves (tied or not, in one file or several, f32, bf16 and f16) start our engine in
several layouts and give the same logits and loss (train_init_from_test does that part); converted there and back every
tensor is the same to the last bit; a checkpoint of ours, exported, gives transformers our logits.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = ["torch", "transformers>=4.45", "safetensors", "numpy"]
BATCH, SEQUENCE, VOCAB = 4, 32, 97


def binary(name):
    root = pathlib.Path(__file__).resolve().parents[2]
    return str(pathlib.Path(os.environ.get("TELAR_BIN_DIR", root / "build/release/bin")) / name)


def enter_environment():
    """Runs this file again with the interpreter that has the packages."""
    folder = os.environ.get("TELAR_CONVERT_VENV")
    if not folder:
        print("skipped: TELAR_CONVERT_VENV names no virtual environment with torch and transformers")
        sys.exit(SKIPPED)
    python = pathlib.Path(folder) / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    sys.exit(subprocess.run([python, __file__, "--inside"], check=False).returncode)


def make_models():
    """(name, model, dtype, options of save_pretrained)"""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    def gpt2(**more):
        return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=SEQUENCE, n_embd=48, n_layer=2, n_head=4,
                                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                                          eos_token_id=None, **more))

    def common(**more):
        return dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
                    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, **more)

    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=16)
    several = dict(max_shard_size="60KB")
    yield "gpt2", gpt2(), "float32", {}
    yield "gpt2_several_bf16", gpt2(), "bfloat16", several
    yield "gpt2_untied_inner", gpt2(tie_word_embeddings=False, n_inner=100), "float32", several
    yield "gpt2_without_prefix", gpt2(), "float32", {}
    yield "llama", LlamaForCausalLM(LlamaConfig(**common(tie_word_embeddings=False))), "float32", several
    yield "llama_tied_wide_heads", LlamaForCausalLM(LlamaConfig(**common(tie_word_embeddings=True, head_dim=16))), "bfloat16", {}
    yield "llama3", LlamaForCausalLM(LlamaConfig(**common(tie_word_embeddings=True, rope_parameters=llama3))), "float32", {}
    yield "qwen2_tied", Qwen2ForCausalLM(Qwen2Config(**common(tie_word_embeddings=True, rms_norm_eps=1e-6))), "float32", several
    yield "qwen2_f16", Qwen2ForCausalLM(Qwen2Config(**common(tie_word_embeddings=False))), "float16", {}


def randomize(model, generator):
    """Larger than a training start, so that every term of the arithmetic shows in the logits."""
    import torch
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and key.endswith("weight")
            parameter.copy_(1.0 + 0.1 * noise if is_norm else (0.15 if parameter.dim() == 2 else 0.1) * noise)


def logits_of(folder, tokens):
    import torch
    from transformers import AutoModelForCausalLM
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, f"{folder}: {wrong}"
    with torch.no_grad():
        return model.eval()(tokens.long()).logits


def make_cases(root):
    import torch
    from safetensors.torch import save_file
    generator = torch.Generator().manual_seed(11)
    for name, model, dtype, options in make_models():
        randomize(model, generator)
        folder = root / name
        saved = model.transformer if name == "gpt2_without_prefix" else model
        saved.to(getattr(torch, dtype)).save_pretrained(folder / "hf", **options)
        files = sorted(path.name for path in (folder / "hf").glob("*.safetensors"))
        assert (len(files) > 1) == bool(options), files
        tokens = torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1), generator=generator)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        logits = logits_of(folder / "hf", inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        save_file({"tokens": inputs.int(), "targets": targets.int(), "logits": logits, "loss": loss.reshape(1)},
                  folder / "expected.safetensors")


def convert(source, target, *options):
    subprocess.run([binary("telar"), "ckpt", "convert", source, target, *options], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return target


def tensors_of(folder):
    from safetensors.torch import load_file
    found = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert name not in found, name
            found[name.removeprefix("transformer.").removeprefix("model.")] = tensor
    return found


def same(left, right):
    import torch
    a, b = tensors_of(left), tensors_of(right)
    assert a.keys() == b.keys(), f"{right}: {sorted(a.keys() ^ b.keys())}"
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype and torch.equal(tensor, b[name]), f"{right}: {name} differs"


def llmc_bytes(folder):
    """The .bin of a GPT-2 as llm.c's own script lays it out: magic, version, sizes; then tensors by kind, [out, in]."""
    import numpy
    found = {name: tensor.numpy() for name, tensor in tensors_of(folder).items()}
    hidden, layers, padded = found["wte.weight"].shape[1], 2, 128
    header = numpy.zeros(256, numpy.int32)
    header[:8] = 20240326, 3, found["wpe.weight"].shape[0], VOCAB, layers, 4, hidden, padded
    parts = [numpy.pad(found["wte.weight"], ((0, padded - VOCAB), (0, 0))), found["wpe.weight"]]
    for name in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                 "mlp.c_proj.weight", "mlp.c_proj.bias"):
        parts += [found[f"h.{i}.{name}"].T for i in range(layers)]
    parts += [found["ln_f.weight"], found["ln_f.bias"]]
    return header.tobytes() + b"".join(numpy.ascontiguousarray(part).tobytes() for part in parts)


def check_case(folder):
    import torch
    from safetensors.torch import load_file
    expected = load_file(folder / "expected.safetensors")
    there = convert(folder / "hf", folder / "there")
    back = convert(there, folder / "back")
    same(folder / "hf", back)
    assert torch.equal(logits_of(back, expected["tokens"]), expected["logits"]), f"{back}: logits"
    same(back, convert(folder / "hf", folder / "direct", "--to", "hf", "--shard-size", "50KB"))

    exported = convert(folder / "run/ckpt/step-00000001", folder / "exported", "--shard-size", "100KB")
    ours = load_file(folder / "ours.safetensors")["logits"].reshape(BATCH, SEQUENCE, VOCAB)
    difference = (logits_of(exported, expected["tokens"]) - ours).abs().max().item()
    assert difference < 1e-4, f"{exported}: logits differ by {difference}"
    assert (ours - expected["logits"]).abs().max().item() > 1e-3, f"{exported}: one step changed nothing"
    if folder.name == "gpt2":
        binary_file = convert(there, folder / "gpt2.bin", "--to", "llmc")
        assert binary_file.read_bytes() == llmc_bytes(folder / "hf"), f"{binary_file} is not what llm.c writes"
        same(folder / "hf", convert(binary_file, folder / "from_llmc", "--to", "hf"))
    print(f"{folder.name}: equal; after a step the logits differ by {difference:.1e} at most")


def main():
    if sys.argv[1:] != ["--inside"]:
        enter_environment()
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="telar-convert-") as root:
        root = pathlib.Path(root)
        make_cases(root)
        environment = dict(os.environ, TELAR_CONVERT_CASES=str(root))
        subprocess.run([binary("train_init_from_test"), "--gtest_brief=1", "--gtest_filter=Transformers.*"], check=True,
                       env=environment)
        for folder in sorted(root.iterdir()):
            check_case(folder)


if __name__ == "__main__":
    main()
