#!/usr/bin/env python3
"""Makes the reference folders beside this file, with PyTorch in float64.

    python3 make_golden.py            makes all of them again
    python3 make_golden.py NAME       makes one

A folder holds config.json (Hugging Face's keys), model.safetensors (f32, the start), and
expected.safetensors: tokens (steps, rows, context + 1), the logits and gradients of step 1, the loss
of each step, and the parameters after the last. Inputs are tokens[:, :-1], targets tokens[:, 1:].
The model is written out here, from the formulas, and shares nothing with the C code.
"""
import json
import math
import os
import struct
import sys

import numpy
import torch

# name: layers, heads, channels, context, vocab, rows, steps, seed
SHAPES = {
    "gpt2-odd": (3, 2, 40, 24, 97, 3, 10, 11),
    "gpt2-one-head": (1, 1, 20, 17, 256, 2, 10, 12),
    "gpt2-many-heads": (2, 12, 36, 9, 50, 5, 10, 13),
}
OPTIMIZER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
LN_EPS = 1e-5


def write(path, tensors, metadata):
    names = {"float32": "F32", "float64": "F64", "int32": "I32"}
    head = {"__metadata__": metadata}
    at = 0
    for name, array in tensors.items():
        head[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape),
                      "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(numpy.ascontiguousarray(array).tobytes())


def initial(layers, channels, context, vocab):
    """Nothing is left at 0 or 1, so that no gradient is hidden."""
    def normal(*shape, std=0.08, mean=0.0):
        return (mean + std * torch.randn(*shape, dtype=torch.float64)).float().double()

    parameters = {"wte.weight": normal(vocab, channels), "wpe.weight": normal(context, channels)}
    for layer in range(layers):
        parts = {
            "ln_1.weight": normal(channels, mean=1.0), "ln_1.bias": normal(channels),
            "attn.c_attn.weight": normal(channels, 3 * channels, std=0.2),
            "attn.c_attn.bias": normal(3 * channels),
            "attn.c_proj.weight": normal(channels, channels), "attn.c_proj.bias": normal(channels),
            "ln_2.weight": normal(channels, mean=1.0), "ln_2.bias": normal(channels),
            "mlp.c_fc.weight": normal(channels, 4 * channels, std=0.2),
            "mlp.c_fc.bias": normal(4 * channels),
            "mlp.c_proj.weight": normal(4 * channels, channels),
            "mlp.c_proj.bias": normal(channels),
        }
        parameters.update({f"h.{layer}.{name}": value for name, value in parts.items()})
    parameters["ln_f.weight"] = normal(channels, mean=1.0)
    parameters["ln_f.bias"] = normal(channels)
    return parameters


def norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred ** 2).mean(-1, keepdim=True) + LN_EPS) * weight + bias


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def attention(qkv, heads):
    rows, time, width = qkv.shape
    size = width // 3 // heads
    q, k, v = (part.reshape(rows, time, heads, size).transpose(1, 2) for part in qkv.chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(size)
    later = torch.triu(torch.ones(time, time, dtype=torch.bool), 1)
    weights = torch.softmax(scores.masked_fill(later, -math.inf), -1)
    return (weights @ v).transpose(1, 2).reshape(rows, time, width // 3)


def forward(p, tokens, layers, heads):
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for layer in range(layers):
        def get(name):
            return p[f"h.{layer}.{name}"]
        y = norm(x, get("ln_1.weight"), get("ln_1.bias"))
        y = attention(y @ get("attn.c_attn.weight") + get("attn.c_attn.bias"), heads)
        x = x + y @ get("attn.c_proj.weight") + get("attn.c_proj.bias")
        y = norm(x, get("ln_2.weight"), get("ln_2.bias"))
        y = gelu(y @ get("mlp.c_fc.weight") + get("mlp.c_fc.bias"))
        x = x + y @ get("mlp.c_proj.weight") + get("mlp.c_proj.bias")
    return norm(x, p["ln_f.weight"], p["ln_f.bias"]) @ p["wte.weight"].T


def loss_of(logits, targets):
    return (torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]).mean()


def make(folder, layers, heads, channels, context, vocab, rows, steps, seed):
    torch.manual_seed(seed)
    parameters = initial(layers, channels, context, vocab)
    start = {name: value.numpy().astype("float32") for name, value in parameters.items()}
    for value in parameters.values():
        value.requires_grad_(True)
    o = OPTIMIZER
    optimizer = torch.optim.AdamW(
        [{"params": [v for v in parameters.values() if v.dim() >= 2],
          "weight_decay": o["weight_decay"]},
         {"params": [v for v in parameters.values() if v.dim() < 2], "weight_decay": 0.0}],
        lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"])
    tokens = torch.randint(0, vocab, (steps, rows, context + 1))
    expected = {"tokens": tokens.numpy().astype("int32")}
    losses = []
    for step in range(steps):
        logits = forward(parameters, tokens[step, :, :-1], layers, heads)
        loss = loss_of(logits, tokens[step, :, 1:])
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            expected["logits"] = logits.detach().numpy().copy()
            for name, value in parameters.items():
                expected["grad." + name] = value.grad.numpy().copy()
        losses.append(loss.item())
        optimizer.step()
    expected["losses"] = numpy.array(losses)
    for name, value in parameters.items():
        expected["after." + name] = value.detach().numpy().astype("float32")

    metadata = {key: str(value) for key, value in {
        "layers": layers, "heads": heads, "channels": channels, "context": context, "vocab": vocab,
        "rows": rows, "steps": steps, **o, "decay": "tensors of rank 2 or more", "ln_eps": LN_EPS,
        "gelu": "tanh", "loss": "mean over tokens", "head": "tied to wte", "clip": "none"}.items()}
    os.makedirs(folder, exist_ok=True)
    write(os.path.join(folder, "model.safetensors"), start, {**metadata, "format": "pt"})
    write(os.path.join(folder, "expected.safetensors"), expected, metadata)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": layers,
                   "n_head": heads, "n_embd": channels, "n_positions": context, "n_ctx": context,
                   "vocab_size": vocab, "layer_norm_epsilon": LN_EPS,
                   "activation_function": "gelu_new", "tie_word_embeddings": True}, file, indent=1)
        file.write("\n")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for name in sys.argv[1:] or SHAPES:
        make(os.path.join(here, name), *SHAPES[name])
        print(name)


if __name__ == "__main__":
    main()
