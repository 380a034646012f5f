"""Small GPT-2 and Llama models as Hugging Face directories, and what they say of a text: standard library only, in double precision."""
import array
import json
import math
import random
import shutil
import struct

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN = 2, 16, 2, 1, 48
HEAD = HIDDEN // HEADS
EPSILON, THETA = 1e-5, 10000.0


def gpt2_shapes(vocab, positions):
    shapes = {"transformer.wte.weight": (vocab, HIDDEN), "transformer.wpe.weight": (positions, HIDDEN)}
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{at}{norm}.weight": (HIDDEN,), f"{at}{norm}.bias": (HIDDEN,)}
        for name, shape in (("attn.c_attn", (HIDDEN, 3 * HIDDEN)), ("attn.c_proj", (HIDDEN, HIDDEN)),
                            ("mlp.c_fc", (HIDDEN, 4 * HIDDEN)), ("mlp.c_proj", (4 * HIDDEN, HIDDEN))):
            shapes |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": (shape[1],)}
    return shapes | {"transformer.ln_f.weight": (HIDDEN,), "transformer.ln_f.bias": (HIDDEN,)}


def llama_shapes(vocab):
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, shape in (("input_layernorm", (HIDDEN,)), ("post_attention_layernorm", (HIDDEN,)),
                            ("self_attn.q_proj", (HIDDEN, HIDDEN)), ("self_attn.k_proj", (KV_HEADS * HEAD, HIDDEN)),
                            ("self_attn.v_proj", (KV_HEADS * HEAD, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HIDDEN)),
                            ("mlp.gate_proj", (FFN, HIDDEN)), ("mlp.up_proj", (FFN, HIDDEN)), ("mlp.down_proj", (HIDDEN, FFN))):
            shapes[f"{at}{name}.weight"] = shape
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (vocab, HIDDEN)}


def random_tensors(shapes, seed):
    """Large enough that every weight matters to the loss."""
    draw = random.Random(seed)
    tensors = {}
    for name, shape in shapes.items():
        norm = len(shape) == 1 and name.endswith("weight")
        values = [draw.gauss(1 if norm else 0, 0.2) for _ in range(math.prod(shape))]
        tensors[name] = (shape, array.array("f", values))
    return tensors


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + 4 * len(values)]}
        offset += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", (name, entry)
        begin, end = entry["data_offsets"]
        tensors[name] = (tuple(entry["shape"]), array.array("f", data[8 + size + begin:8 + size + end]))
    return tensors


def write_model(folder, config, tensors, tokenizer):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(folder / "model.safetensors", tensors)
    shutil.copy(tokenizer, folder / "tokenizer.json")


def gpt2_config(vocab, positions, **more):
    return dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS,
                n_positions=positions, n_ctx=positions, vocab_size=vocab, activation_function="gelu_new", **more)


def llama_config(vocab, **more):
    return dict(model_type="llama", architectures=["LlamaForCausalLM"], num_hidden_layers=LAYERS, hidden_size=HIDDEN,
                num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, intermediate_size=FFN, vocab_size=vocab,
                max_position_embeddings=512, rms_norm_eps=EPSILON, rope_theta=THETA, hidden_act="silu",
                tie_word_embeddings=False, **more)


class Weights:
    def __init__(self, tensors):
        self.tensors = tensors

    def rows(self, name):
        shape, values = self.tensors[name]
        return [values[row * shape[1]:(row + 1) * shape[1]] for row in range(shape[0])]

    def columns(self, name):
        return [list(column) for column in zip(*self.rows(name))]

    def vector(self, name):
        return self.tensors[name][1]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def apply(rows, x, bias=None):
    out = [dot(row, x) for row in rows]
    return out if bias is None else [a + b for a, b in zip(out, bias)]


def add(a, b):
    return [x + y for x, y in zip(a, b)]


def attend(queries, keys, values, kv_heads):
    """Of one head each, causal; lists of positions."""
    out = []
    for at, query in enumerate(queries):
        mixed = []
        for head in range(HEADS):
            kv = head * kv_heads // HEADS
            mine, part = slice(head * HEAD, (head + 1) * HEAD), slice(kv * HEAD, (kv + 1) * HEAD)
            scores = [dot(query[mine], keys[past][part]) / math.sqrt(HEAD) for past in range(at + 1)]
            most = max(scores)
            shares = [math.exp(score - most) for score in scores]
            total = sum(shares)
            mixed += [sum(share * values[past][part][i] for past, share in enumerate(shares)) / total for i in range(HEAD)]
        out.append(mixed)
    return out


def loss_of(logits, targets):
    total = 0.0
    for row, target in zip(logits, targets):
        most = max(row)
        total += most + math.log(sum(math.exp(value - most) for value in row)) - row[target]
    return total / len(targets)


def gpt2_loss(tensors, tokens):
    """Mean over the targets, each token but the first."""
    weights = Weights(tensors)

    def norm(name, x):
        mean = sum(x) / len(x)
        scale = 1 / math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + EPSILON)
        return [(value - mean) * scale * w + b for value, w, b in zip(x, weights.vector(name + ".weight"), weights.vector(name + ".bias"))]

    def linear(name):
        rows, bias = weights.columns(name + ".weight"), weights.vector(name + ".bias")
        return lambda x: apply(rows, x, bias)
    table, places = weights.rows("transformer.wte.weight"), weights.rows("transformer.wpe.weight")
    stream = [add(table[token], places[at]) for at, token in enumerate(tokens[:-1])]
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        qkv = [linear(at + "attn.c_attn")(norm(at + "ln_1", x)) for x in stream]
        heads = attend([x[:HIDDEN] for x in qkv], [x[HIDDEN:2 * HIDDEN] for x in qkv], [x[2 * HIDDEN:] for x in qkv], HEADS)
        stream = [add(x, linear(at + "attn.c_proj")(head)) for x, head in zip(stream, heads)]
        for index, x in enumerate(stream):
            hidden = linear(at + "mlp.c_fc")(norm(at + "ln_2", x))
            hidden = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v ** 3))) for v in hidden]
            stream[index] = add(x, linear(at + "mlp.c_proj")(hidden))
    return loss_of([apply(table, norm("transformer.ln_f", x)) for x in stream], tokens[1:])


def llama_loss(tensors, tokens):
    weights = Weights(tensors)

    def norm(name, x):
        scale = 1 / math.sqrt(dot(x, x) / len(x) + EPSILON)
        return [value * scale * w for value, w in zip(x, weights.vector(name + ".weight"))]

    def rotated(x, position):
        out, half = list(x), HEAD // 2
        for head in range(0, len(x), HEAD):
            for i in range(half):
                angle = position * THETA ** (-2 * i / HEAD)
                a, b = x[head + i], x[head + half + i]
                out[head + i] = a * math.cos(angle) - b * math.sin(angle)
                out[head + half + i] = b * math.cos(angle) + a * math.sin(angle)
        return out
    table = weights.rows("model.embed_tokens.weight")
    stream = [list(table[token]) for token in tokens[:-1]]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        q, k, v, o, gate, up, down = (weights.rows(f"{at}{name}_proj.weight") for name in (
            "self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"))
        inner = [norm(at + "input_layernorm", x) for x in stream]
        heads = attend([rotated(apply(q, x), at) for at, x in enumerate(inner)],
                       [rotated(apply(k, x), at) for at, x in enumerate(inner)], [apply(v, x) for x in inner], KV_HEADS)
        stream = [add(x, apply(o, head)) for x, head in zip(stream, heads)]
        for index, x in enumerate(stream):
            inner = norm(at + "post_attention_layernorm", x)
            hidden = [a / (1 + math.exp(-a)) * b for a, b in zip(apply(gate, inner), apply(up, inner))]
            stream[index] = add(x, apply(down, hidden))
    head = weights.rows("lm_head.weight")
    return loss_of([apply(head, norm("model.norm", x)) for x in stream], tokens[1:])
