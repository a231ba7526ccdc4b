#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the small models of this folder with their data and reference losses. For developers; needs torch and
transformers. Neither building nor testing runs it.

NAME.STYLE.onnx   dynamo18, dynamo23 (torch.onnx.export, dynamo), dynamic18 (symbolic batch), legacy17
                  (TorchScript), external18 (weights in a file beside the model)
NAME.data.npz     inputs by name, and labels
NAME.ref.npz      loss, grad/PARAMETER at step 1, adamw_losses: 20 losses, each before its update, of torch AdamW
                  (lr 1e-3, betas .9 .95, eps 1e-8, weight decay .1)

usage: make_models.py [NAME ...]"""
import copy
import os
import sys
import warnings

import numpy as np
import onnx
import torch
import transformers as tf
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
here = os.path.dirname(os.path.abspath(__file__))


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, input_ids):
        return self.m(input_ids=input_ids, use_cache=False).logits


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = nn.Linear(12, 24), nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, x):
        return self.b(self.n(F.gelu(self.a(x))))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c2, self.g2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.GroupNorm(4, 16)
        self.f = nn.Linear(16 * 9, 7)

    def forward(self, x):
        x = F.max_pool2d(F.silu(self.b1(self.c1(x))), 2, padding=0)
        x = F.avg_pool2d(F.relu(self.g2(self.c2(F.pad(x, (1, 1, 1, 1))))), 2, ceil_mode=True)
        return self.f(F.interpolate(x, size=(3, 3)).flatten(1))


class Conv1(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.t = nn.Conv1d(4, 12, 5, dilation=2, padding=4), nn.ConvTranspose1d(12, 6, 4, stride=2, padding=1)
        self.n, self.f = nn.InstanceNorm1d(6, affine=True), nn.Linear(6, 5)

    def forward(self, x):
        return self.f(self.n(self.t(F.gelu(self.c(x)))).amax(-1))


class Acts(nn.Module):
    fs = [F.elu, F.selu, F.leaky_relu, F.hardswish, F.softplus, F.mish, torch.atan, F.hardsigmoid, F.tanh,
          lambda t: torch.clamp(t, -0.5, 0.5)]

    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(12, 12) for _ in self.fs])
        self.p, self.o, self.e = nn.PReLU(3), nn.Linear(12, 5), nn.Parameter(torch.randn(1, 3, 12) * 0.1)

    def forward(self, x):
        x = x.unsqueeze(1) + self.e
        for layer, f in zip(self.l, self.fs):
            x = f(layer(x)) + x
        x = torch.cat([self.p(x).max(1).values, x.mean(1)], -1)[:, ::2]
        return self.o(x.cumsum(-1) * 0.1)


def ids(batch, seq, vocab):
    return torch.randint(0, vocab, (batch, seq))


def models():
    yield "mlp", Mlp, torch.randn(8, 12), "x", 5, "dynamo18 legacy17 dynamic18"
    yield "cnn", Cnn, torch.randn(4, 3, 12, 12), "x", 7, "legacy17"
    yield "conv1", Conv1, torch.randn(4, 4, 10), "x", 5, "dynamo18 legacy17"
    yield "acts", Acts, torch.randn(6, 12), "x", 5, "dynamo18 legacy17"
    yield "gpt", lambda: Logits(tf.GPT2LMHeadModel(tf.GPT2Config(
        n_layer=1, n_embd=32, n_head=2, n_positions=16, vocab_size=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0))), ids(2, 16, 64), "input_ids", 64, "dynamo18 dynamo23"
    yield "llama", lambda: Logits(tf.LlamaForCausalLM(tf.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=0))), ids(2, 16, 64), \
        "input_ids", 64, "dynamo18 dynamo23"


def export(model, x, name, path, style):
    legacy, opset = style.startswith("legacy"), int(style[-2:])
    options = dict(do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE) if legacy else \
        dict(external_data=False)
    if style.startswith("dynamic"):
        options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(copy.deepcopy(model), (x,), path, dynamo=not legacy, opset_version=opset, input_names=[name],
                      output_names=["logits"], verbose=False, **options)
    # Stack traces of the exporting machine are of no use here.
    proto = onnx.load(path)
    del proto.graph.metadata_props[:], proto.metadata_props[:]
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info, *proto.graph.initializer]:
        del value.metadata_props[:]
    onnx.save(proto, path)
    if name == "x" and style == "dynamo18" and path.endswith("mlp.dynamo18.onnx"):
        beside = os.path.basename(path).replace("dynamo18", "external18")
        if os.path.exists(os.path.join(here, beside + ".data")):
            os.remove(os.path.join(here, beside + ".data"))
        onnx.save(proto, os.path.join(here, beside), save_as_external_data=True, location=beside + ".data",
                  size_threshold=0)


def reference(model, x, labels, classes):
    def loss_of():
        return F.cross_entropy(model(x).reshape(-1, classes), labels.reshape(-1))

    loss = loss_of()
    loss.backward()
    ref = {"loss": loss.item()}
    ref.update({"grad/" + k: p.grad.numpy().copy() for k, p in model.named_parameters()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    ref["adamw_losses"] = np.array(losses)
    return ref


torch.manual_seed(0)
for name, make, x, input_name, classes, styles in models():
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    torch.manual_seed(0)
    model = make()
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data.add_(torch.randn(p.shape, generator=generator) * 1e-2)
    batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    model.train(batch_norm)
    with torch.no_grad():
        shape = copy.deepcopy(model)(x).shape[:-1]
    labels = torch.randint(0, classes, shape, generator=generator)
    for style in styles.split():
        export(model, x, input_name, f"{here}/{name}.{style}.onnx", style)
    np.savez(f"{here}/{name}.data.npz", **{input_name: x.numpy()}, labels=labels.numpy())
    np.savez(f"{here}/{name}.ref.npz", **reference(model, x, labels, classes))
    print(name, "done")
