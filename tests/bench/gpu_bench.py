# SPDX-License-Identifier: Apache-2.0
"""Lathe beside PyTorch on one GPU, in one run: training steps of the same exported networks, median
step time, tokens per second, peak memory, ratios. Not a test: nothing here can fail on a timing.

usage: python3 gpu_bench.py --lathe BIN --models DIR [--peers DIR] [--recipe bf16] [--layer REGEX]
                            [--steps N] [MODEL:BATCH...]
DIR holds folders MODEL_BATCH_OPSET as gpu_export.py writes them; weights that are missing are drawn
at random. Without PyTorch or PEERS only Lathe's figures are printed."""
import argparse
import glob
import json
import os
import subprocess
import sys
import time

MARK = "{"


def fill_weights(folder):
    """The external weights described by weights.json: N(0, 0.02), vectors near their usual values."""
    path = os.path.join(folder, "model.onnx.data")
    if os.path.exists(path):
        return
    import numpy
    with open(os.path.join(folder, "weights.json")) as f:
        spec = json.load(f)
    rng = numpy.random.default_rng(0)
    with open(path + ".part", "wb") as f:
        f.truncate(spec["bytes"])
        for t in spec["tensors"]:
            if "hex" in t:
                f.seek(t["offset"])
                f.write(bytes.fromhex(t["hex"]))
                continue
            n = t["bytes"] // 4
            base = 1.0 if len(t["dims"]) == 1 and t["name"].endswith(".w") else 0.0
            f.seek(t["offset"])
            f.write((base + 0.02 * rng.standard_normal(n, dtype=numpy.float32)).astype(numpy.float32).tobytes())
    os.rename(path + ".part", path)


def last_json(text):
    lines = [x for x in text.splitlines() if x.startswith(MARK)]
    return json.loads(lines[-1]) if lines else None


def run_lathe(a, folder):
    fill_weights(folder)
    cmd = [a.lathe, "bench", os.path.join(folder, "model.onnx"), "--loss", "next_token(logits)", "--recipe",
           a.recipe, "--device", "cuda", "--steps", str(a.steps), "--json"]
    begin = time.time()
    r = subprocess.run(cmd, capture_output=True, text=True)
    if r.returncode:
        print(os.path.basename(folder), "failed:", r.stderr.strip(), flush=True)
        return None
    result = last_json(r.stdout)
    result["wall_s"] = round(time.time() - begin, 1)
    return result


def run_peer(a, name, batch):
    if not a.peers:
        return None
    script = os.path.join(a.peers, "train.py")
    r = subprocess.run([sys.executable, script, f"{name}:{batch}:compile"], capture_output=True, text=True)
    result = last_json(r.stdout)
    if not result:
        print(name, "peer failed:", r.stdout[-300:], r.stderr[-300:], flush=True)
    return result


def compare(a, name, batch):
    peer = run_peer(a, name, batch)
    if peer:
        print(f"{name:8} {batch:3}        PyTorch  {peer['ms']:9.2f} ms {peer['tok_s']:8d} tok/s {peer['peak_GiB']:7.2f} GiB"
              f"  warm-up {peer['warmup_s']} s", flush=True)
    for folder in sorted(glob.glob(os.path.join(a.models, f"{name}_{batch}_*"))):
        own = run_lathe(a, folder)
        if not own:
            continue
        opset = folder.rsplit("_", 1)[1]
        gib = own["memory_bytes"] / 2**30
        line = f"{name:8} {batch:3} opset {opset} Lathe    {own['ms']:9.2f} ms {own['tokens_per_s']:8.0f} tok/s {gib:7.2f} GiB  first step {own['first_step_s']:.2f} s"
        if peer:
            line += f"  speed {peer['ms'] / own['ms']:.3f}x  memory {gib / peer['peak_GiB']:.3f}x"
        print(line, flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lathe", required=True)
    p.add_argument("--models", required=True)
    p.add_argument("--peers", default="")
    p.add_argument("--recipe", default="bf16")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("cases", nargs="*", default=["gpt2:64", "gpt2m:16", "llama1b:16"])
    a = p.parse_args()
    for case in a.cases:
        name, batch = case.split(":")
        compare(a, name, int(batch))


main()
