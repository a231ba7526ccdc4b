#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU training step of Lathe and PyTorch on the same GPT-2, in turns in one run. Needs torch; a developer's tool, not part
of the build.

usage: step_vs_torch.py LATHE MODEL.onnx LAYERS WIDTH HEADS CONTEXT VOCAB BATCH [ROUNDS]
MODEL.onnx is made by samples/export_gpt.py with the same numbers. PyTorch runs the network written plainly, with its
fused attention, its tanh GELU and its fused AdamW; both train in f32 without clipping (Lathe's step includes the
gradient norm). Prints the median step of each and PyTorch's over Lathe's: above 1, Lathe is faster."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

lathe, model = sys.argv[1:3]
layers, width, heads, context, vocab, batch = map(int, sys.argv[3:9])
rounds = int(sys.argv[9]) if len(sys.argv) > 9 else 3
threads = len(os.sched_getaffinity(0))
torch.set_num_threads(threads)
steps = 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.wte.weight)


def torch_steps():
    torch.manual_seed(0)
    net = Gpt()
    ids = torch.randint(0, vocab, (batch, context))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        opt.zero_grad()
        logits = net(ids)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, vocab), ids[:, 1:].reshape(-1))
        loss.backward()
        opt.step()
        times.append((time.perf_counter() - begin) * 1000)
    return times[2:]


def lathe_steps(folder, data):
    run = os.path.join(folder, "run")
    shutil.rmtree(run, ignore_errors=True)
    subprocess.run([lathe, "train", model, "--data", data, "-o", run, "--loss", "next_token(logits)", "--lr", "1e-4",
                    "--steps", str(steps), "--quiet"], check=True)
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line)["ms"] for line in f if '"step":' in line][2:]


with tempfile.TemporaryDirectory() as folder:
    data = os.path.join(folder, "ids.npz")
    np.savez(data, input_ids=np.random.RandomState(0).randint(0, vocab, (8 * batch, context)))
    ours, theirs = [], []
    for _ in range(rounds):
        theirs += torch_steps()
        ours += lathe_steps(folder, data)
a, b = statistics.median(ours), statistics.median(theirs)
print(f"{layers} layers, {width} wide, {batch} x {context}, {threads} threads: "
      f"Lathe {a:.1f} ms (best {min(ours):.1f}), PyTorch {torch.__version__} {b:.1f} ms (best {min(theirs):.1f}), "
      f"ratio {b / a:.3f}")
