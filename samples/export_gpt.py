#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Export a GPT-2 from transformers to ONNX, as samples/models/gpt-bytes.onnx was made. Needs torch and
transformers; Lathe itself needs neither.

usage: export_gpt.py OUT.onnx [LAYERS WIDTH HEADS CONTEXT VOCAB [BATCH]]
With BATCH the shapes are fixed; without it batch and sequence stay symbolic."""
import sys

import onnx
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

out = sys.argv[1]
layers, width, heads, context, vocab = (list(map(int, sys.argv[2:7])) or [4, 128, 4, 128, 256])
batch = int(sys.argv[7]) if len(sys.argv) > 7 else 0


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, input_ids):
        return self.m(input_ids=input_ids, use_cache=False).logits


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=context,
                                   vocab_size=vocab, resid_pdrop=0.0, embd_pdrop=0.0,
                                   attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
ids = torch.randint(0, vocab, (batch or 2, context))
shapes = None if batch else ({0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=context)},)
torch.onnx.export(Logits(model).eval(), (ids,), out, dynamo=True, external_data=False,
                  input_names=["input_ids"], output_names=["logits"], opset_version=18,
                  dynamic_shapes=shapes)
# Stack traces of the exporting machine are of no use to anybody else.
proto = onnx.load(out)
del proto.graph.metadata_props[:], proto.metadata_props[:]
for node in proto.graph.node:
    del node.metadata_props[:]
    node.doc_string = ""
for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info, *proto.graph.initializer]:
    del value.metadata_props[:]
onnx.save(proto, out)
