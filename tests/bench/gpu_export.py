# SPDX-License-Identifier: Apache-2.0
"""Exports the peer models for gpu_bench.py and describes their weights, so that the graphs can
travel without them. Not a benchmark itself: gpu_bench.py is.

usage: python3 gpu_export.py PEERS OUTDIR MODEL:BATCH:OPSET...    e.g. gpt2:64:23 gpt2:64:18
PEERS holds export_full.py and train.py; needs PyTorch, onnx and onnxscript. Writes
OUTDIR/MODEL_BATCH_OPSET/{model.onnx,model.onnx.data,weights.json}."""
import json
import os
import subprocess
import sys

import onnx


def describe(folder):
    model = onnx.load(os.path.join(folder, "model.onnx"), load_external_data=False)
    tensors = []
    for t in model.graph.initializer:
        where = {e.key: e.value for e in t.external_data}
        if "location" not in where:
            continue
        entry = {"name": t.name, "type": onnx.TensorProto.DataType.Name(t.data_type), "dims": list(t.dims),
                 "offset": int(where.get("offset", 0)), "bytes": int(where.get("length", 0))}
        if entry["type"] != "FLOAT":  # positions and the like are not weights: kept as they are
            with open(os.path.join(folder, "model.onnx.data"), "rb") as f:
                f.seek(entry["offset"])
                entry["hex"] = f.read(entry["bytes"]).hex()
        tensors.append(entry)
    size = os.path.getsize(os.path.join(folder, "model.onnx.data"))
    with open(os.path.join(folder, "weights.json"), "w") as f:
        json.dump({"bytes": size, "tensors": tensors}, f)


def main():
    peers, out = sys.argv[1], sys.argv[2]
    for spec in sys.argv[3:]:
        folder = os.path.join(out, spec.replace(":", "_"))
        if not os.path.exists(os.path.join(folder, "model.onnx")):
            subprocess.run([sys.executable, os.path.join(peers, "export_full.py"), spec, folder], check=True)
        describe(folder)


main()
