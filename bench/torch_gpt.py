"""The same GPT, trained by PyTorch eager in f32: the peer of `harmony-bench compute --vs-torch`.

Prints the seconds of each step on standard output, a line each. Needs Debian's python3-torch with libopenblas0-openmp.
"""

import argparse
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, channels, heads, context):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(channels)
        self.ln_2 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.fc = nn.Linear(channels, 4 * channels)
        self.out = nn.Linear(4 * channels, channels)
        mask = torch.tril(torch.ones(context, context)).view(1, 1, context, context)
        self.register_buffer("mask", mask)

    def forward(self, x):
        rows, time_, channels = x.shape
        q, k, v = self.qkv(self.ln_1(x)).split(channels, dim=2)
        shape = (rows, time_, self.heads, channels // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (channels // self.heads) ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :time_, :time_] == 0, float("-inf"))
        y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(rows, time_, channels)
        x = x + self.proj(y)
        h = self.fc(self.ln_2(x))
        h = F.gelu(h, approximate="tanh")
        return x + self.out(h)


class Gpt(nn.Module):
    def __init__(self, layers, channels, heads, context, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, channels)
        self.wpe = nn.Embedding(context, channels)
        self.blocks = nn.ModuleList([Block(channels, heads, context) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(channels)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "channels", "heads", "context", "vocab", "rows", "threads", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Gpt(args.layers, args.channels, args.heads, args.context, args.vocab)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(0, args.vocab, (args.rows, args.context))
    targets = torch.randint(0, args.vocab, (args.rows, args.context))
    for _ in range(args.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        loss.item()
        print(time.perf_counter() - start, flush=True)


sys.exit(main())
