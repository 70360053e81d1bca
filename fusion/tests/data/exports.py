#!/usr/bin/env python3
"""Writes resnet-18.onnx and llama.onnx beside this file: torchvision's ResNet-18, and two layers of a Llama with caches, as
torch's exporter has them. Plans do not look at weights, so the files name weights that are nowhere. Needs torch, torchvision,
transformers and onnx."""

from pathlib import Path

import onnx
import torch
import torchvision
from onnx.external_data_helper import set_external_data
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

FOLDER = Path(__file__).resolve().parent


def export(name, model, arguments, inputs, outputs, axes):
    out = str(FOLDER / f"{name}.onnx")
    with torch.no_grad():
        torch.onnx.export(model, arguments, out, input_names=inputs, output_names=outputs, dynamic_axes=axes,
                          opset_version=17, dynamo=False)
    graph = onnx.load(out)
    for weight in graph.graph.initializer:
        if len(weight.raw_data) > 256:
            length = len(weight.raw_data)
            set_external_data(weight, "weights", 0, length)
            weight.ClearField("raw_data")
    Path(out).write_bytes(graph.SerializeToString())


class Cached(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask, positions, *past):
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        return out.logits, *(part for layer in out.past_key_values.layers for part in (layer.keys, layer.values))


def llama(layers, hidden, heads, key_heads, inner, vocabulary):
    config = LlamaConfig(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
                         num_key_value_heads=key_heads, vocab_size=vocabulary, attn_implementation="sdpa")
    model = Cached(LlamaForCausalLM(config).eval())
    past = [torch.randn(2, key_heads, 5, hidden // heads) for _ in range(2 * layers)]
    ids, mask = torch.randint(0, vocabulary, (2, 3)), torch.ones(2, 8, dtype=torch.long)
    positions = torch.arange(5, 8).expand(2, 3).contiguous()
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    given, made = ([f"{when}.{name}" for name in names] for when in ("past", "present"))
    axes = {"ids": {0: "batch", 1: "sequence"}, "mask": {0: "batch", 1: "total"}, "positions": {0: "batch", 1: "sequence"}}
    axes |= {name: {0: "batch", 2: "past"} for name in given} | {"logits": {0: "batch", 1: "sequence"}}
    export("llama", model, (ids, mask, positions, *past), ["ids", "mask", "positions", *given], ["logits", *made], axes)


torch.manual_seed(0)
export("resnet-18", torchvision.models.resnet18().eval(), (torch.randn(2, 3, 224, 224),), ["x"], ["y"],
       {"x": {0: "batch"}, "y": {0: "batch"}})
llama(2, 256, 4, 2, 512, 1000)
