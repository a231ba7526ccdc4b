#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU training step of Lathe and PyTorch on the same GPT, in turns in one run. Needs torch and transformers; a developer's
tool, not part of the build.

usage: step_vs_torch.py LATHE [LAYERS WIDTH HEADS CONTEXT VOCAB BATCH [ROUNDS]]
Prints the median step of each in milliseconds and PyTorch's over Lathe's (above 1: Lathe is faster). Both use AdamW without
clipping in f32; Lathe's step includes the gradient norm."""
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
from transformers import GPT2Config, GPT2LMHeadModel

lathe = sys.argv[1]
layers, width, heads, context, vocab, batch = list(map(int, sys.argv[2:8])) or [6, 384, 6, 256, 256, 8]
rounds = int(sys.argv[8]) if len(sys.argv) > 8 else 3
steps = 12


def torch_steps():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=context,
                                       vocab_size=vocab, resid_pdrop=0.0, embd_pdrop=0.0,
                                       attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    ids = torch.randint(0, vocab, (batch, context))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        opt.zero_grad()
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocab), ids[:, 1:].reshape(-1))
        loss.backward()
        opt.step()
        times.append((time.perf_counter() - begin) * 1000)
    return times[2:]


def lathe_steps(folder, model, data):
    run = os.path.join(folder, "run")
    shutil.rmtree(run, ignore_errors=True)
    subprocess.run([lathe, "train", model, "--data", data, "-o", run, "--loss", "next_token(logits)",
                    "--steps", str(steps), "--quiet"], check=True)
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line)["ms"] for line in f if '"step":' in line][2:]


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "gpt.onnx")
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([sys.executable, os.path.join(here, "../../samples/export_gpt.py"), model, str(layers), str(width),
                    str(heads), str(context), str(vocab), str(batch)], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    data = os.path.join(folder, "ids.npz")
    np.savez(data, input_ids=np.random.RandomState(0).randint(0, vocab, (8 * batch, context)))
    ours, theirs = [], []
    for _ in range(rounds):
        theirs += torch_steps()
        ours += lathe_steps(folder, model, data)
a, b = statistics.median(ours), statistics.median(theirs)
print(f"{layers} layers, {width} wide, {batch} x {context}, {torch.get_num_threads()} threads: "
      f"Lathe {a:.1f} ms (best {min(ours):.1f}), PyTorch {torch.__version__} {b:.1f} ms (best {min(theirs):.1f}), "
      f"ratio {b / a:.3f}")
