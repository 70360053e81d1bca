"""Exports the tiny decoders of this folder (random weights): torch 2.11, transformers 5, onnx, onnxscript; `python decoders.py`."""
import pathlib

import onnx
import torch
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM)
from transformers.cache_utils import DynamicCache

LAYERS, WIDTH, HEADS, KEY_HEADS, INNER, WORDS = 2, 32, 2, 1, 32, 24
COMMON = dict(hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
              num_key_value_heads=KEY_HEADS, vocab_size=WORDS, max_position_embeddings=64)
MODELS = {
    "llama": lambda **more: LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **COMMON, **more)),
    "qwen2": lambda **more: Qwen2ForCausalLM(Qwen2Config(**COMMON, **more)),
    "mistral": lambda **more: MistralForCausalLM(MistralConfig(sliding_window=4, **COMMON, **more)),
    "gpt2": lambda **more: GPT2LMHeadModel(GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, vocab_size=WORDS, **more)),
}


class Step(torch.nn.Module):
    """Logits and caches as tensors, from ids, a mask, positions and caches as tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        if past and isinstance(past[0], (tuple, list)):
            past = past[0]
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                         past_key_values=cache, use_cache=True)
        layers = out.past_key_values.layers
        return (out.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def export(name, exporter, dtype, attention, prefill=False):
    torch.manual_seed(0)
    model = MODELS[name](attn_implementation=attention).to(dtype).eval()
    heads = HEADS if name == "gpt2" else KEY_HEADS
    batch, new, past = 2, 3, 0 if prefill else 5
    caches = [] if prefill else [torch.randn(batch, heads, past, WIDTH // HEADS, dtype=dtype) for _ in range(2 * LAYERS)]
    positions = torch.arange(past, past + new).expand(batch, new).contiguous()
    args = (torch.randint(0, WORDS, (batch, new)), torch.ones(batch, past + new, dtype=torch.long), positions, *caches)
    kinds = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past.{kind}" for kind in kinds if caches)]
    outputs = ["logits", *(f"present.{kind}" for kind in kinds)]
    short = {torch.half: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}[dtype]
    path = pathlib.Path(__file__).parent / "decoders" / f"{name}-{exporter}-{short}-{attention}{'-prefill' if prefill else ''}.onnx"
    with torch.no_grad():
        if exporter == "script":
            axes = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "total"},
                    "position_ids": {0: "batch", 1: "sequence"}}
            axes |= {name: {0: "batch", 2: "past"} for name in inputs[3:]}
            torch.onnx.export(Step(model), args, path, input_names=inputs, output_names=outputs, dynamic_axes=axes,
                              opset_version=17, dynamo=False)
        else:
            auto = torch.export.Dim.DYNAMIC
            sizes = {name: torch.export.Dim(name, max=32) for name in ("batch", "sequence", "past")}
            rows = {0: sizes["batch"], 1: sizes["sequence"]}
            shapes = (rows, {0: sizes["batch"], 1: auto}, rows, tuple({0: sizes["batch"], 2: sizes["past"]} for _ in caches))
            torch.onnx.export(Step(model), args, path, input_names=inputs, output_names=outputs, dynamic_shapes=shapes,
                              opset_version=18, dynamo=True, external_data=False)
    slim = onnx.load(path)
    for node in (node for graph in (slim.graph, *slim.functions) for node in graph.node):
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*slim.graph.value_info, *slim.graph.input, *slim.graph.output, *slim.graph.initializer):
        del value.metadata_props[:]
    del slim.graph.value_info[:]
    onnx.save(slim, path)


if __name__ == "__main__":
    export("llama", "script", torch.half, "sdpa")
    export("llama", "script", torch.half, "sdpa", prefill=True)
    export("llama", "dynamo", torch.half, "eager")
    export("llama", "dynamo", torch.bfloat16, "sdpa")
    export("qwen2", "script", torch.float32, "sdpa")
    export("mistral", "script", torch.float32, "eager")
    export("gpt2", "script", torch.half, "sdpa")
    export("gpt2", "dynamo", torch.half, "eager")
