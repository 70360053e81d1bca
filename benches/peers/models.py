#!/usr/bin/env python3
"""Writes one of the models that `cpu.py` and `../executors.py` run: `models.py NAME OUT.onnx`; without arguments, their names.
`models.py --dims FILE.onnx` prints the names of a model's dynamic dims.

Weights are random, from a fixed seed, so nothing is downloaded; sizes are those of the public models. The zoo's models
are written by `graphene-models`; vision models need torch and torchvision, language models torch and transformers,
quantised ones onnxruntime's quantisation.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OPSET = 17


def zoo(name):
    def write(out):
        binary = os.environ.get("GRAPHENE_MODELS", ROOT / "target/release/graphene-models")
        subprocess.run([binary, name, "-o", out], check=True, stdout=subprocess.DEVNULL)

    return write


def export(model, arguments, out, inputs, outputs, axes, dynamo=False):
    import torch

    with torch.no_grad():
        torch.onnx.export(model, arguments, out, input_names=inputs, output_names=outputs, opset_version=OPSET,
                          dynamic_axes=axes, dynamo=dynamo, **({} if dynamo else {"do_constant_folding": True}))


def vision(name, dynamo=False):
    def write(out):
        import torch
        import torchvision

        torch.manual_seed(0)
        # One operator for all of attention, which the exporter does not know.
        torch.backends.mha.set_fastpath_enabled(False)
        model = getattr(torchvision.models, name)().eval()
        # Statistics as after training: neither zero nor one.
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        axes = None if dynamo else {"x": {0: "batch"}, "y": {0: "batch"}}
        image = torch.randn(1 if dynamo else 2, 3, 224, 224)
        export(model, (image,), out, ["x"], ["y"], axes, dynamo)

    return write


def decoder(make):
    """A decoder that takes past keys and values and returns them with the new ones."""

    def write(out):
        import torch
        from transformers.cache_utils import DynamicCache

        torch.manual_seed(0)
        model, layers, heads, width = make()
        model.eval()

        class Step(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, ids, mask, positions, *past):
                cache = DynamicCache()
                for layer in range(layers):
                    cache.update(past[2 * layer], past[2 * layer + 1], layer)
                result = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
                               use_cache=True)
                held = [(layer.keys, layer.values) for layer in result.past_key_values.layers]
                return (result.logits, *(state for pair in held for state in pair))

        batch, new, past = 2, 3, 5
        states = [torch.randn(batch, heads, past, width) for _ in range(2 * layers)]
        positions = torch.arange(past, past + new).expand(batch, new).contiguous()
        arguments = (torch.randint(0, 999, (batch, new)), torch.ones(batch, past + new, dtype=torch.long), positions)
        before = [f"past_key_values.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
        after = [name.replace("past_key_values", "present") for name in before]
        axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "position_ids", "logits")}
        axes["attention_mask"] = {0: "batch", 1: "total"}
        axes |= {name: {0: "batch", 2: "past"} for name in before} | {name: {0: "batch", 2: "total"} for name in after}
        names = ["input_ids", "attention_mask", "position_ids", *before]
        export(Step(), (*arguments, *states), out, names, ["logits", *after], axes)

    return write


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                         num_key_value_heads=12, vocab_size=32000, max_position_embeddings=2048)
    return LlamaForCausalLM(config), 12, 12, 64


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), 12, 12, 64


def qwen():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=6, num_attention_heads=14,
                         num_key_value_heads=2, vocab_size=32000, max_position_embeddings=2048)
    return Qwen2ForCausalLM(config), 6, 2, 64


def t5(out):
    """The encoder, with the relative positions of its attention."""
    import torch
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    model = T5EncoderModel(T5Config()).eval()

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    tokens = {0: "batch", 1: "sequence"}
    axes = {"input_ids": tokens, "attention_mask": tokens, "states": tokens}
    arguments = (torch.randint(0, 999, (2, 16)), torch.ones(2, 16, dtype=torch.long))
    export(Encoder(), arguments, out, ["input_ids", "attention_mask"], ["states"], axes)


def detr(out):
    """ResNet-50 and six layers each of an encoder and a decoder of 100 queries."""
    import torch
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    torch.manual_seed(0)
    backbone = ResNetConfig(out_features=["stage4"])
    config = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone)
    model = DetrForObjectDetection(config).eval()

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixels):
            found = self.model(pixel_values=pixels, pixel_mask=torch.ones(pixels.shape[0], 224, 224, dtype=torch.long))
            return found.logits, found.pred_boxes

    axes = {name: {0: "batch"} for name in ("pixels", "classes", "boxes")}
    export(Detector(), (torch.randn(2, 3, 224, 224),), out, ["pixels"], ["classes", "boxes"], axes)


def tagger(out):
    """A label for each token, by an LSTM in both directions."""
    import torch

    torch.manual_seed(0)

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(10000, 128)
            self.lstm = torch.nn.LSTM(128, 128, num_layers=2, bidirectional=True, batch_first=True)
            self.classes = torch.nn.Linear(256, 20)

        def forward(self, ids):
            return self.classes(self.lstm(self.embedding(ids))[0]).log_softmax(-1)

    tokens = {0: "batch", 1: "sequence"}
    ids = torch.randint(0, 9999, (2, 16))
    export(Tagger().eval(), (ids,), out, ["input_ids"], ["labels"], {"input_ids": tokens, "labels": tokens})


def whisper(out):
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    torch.manual_seed(0)
    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = WhisperEncoder(config).eval()

        def forward(self, features):
            return self.encoder(features).last_hidden_state

    axes = {"features": {0: "batch"}, "states": {0: "batch"}}
    export(Encoder(), (torch.randn(2, 80, 3000),), out, ["features"], ["states"], axes)


def dynamic_int8(name, reduced=False):
    """Weights of 8 bits, or of 7 if `reduced`, activations quantised as they come."""

    def write(out):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "plain.onnx"
            MODELS[name](plain)
            quantize_dynamic(plain, out, weight_type=QuantType.QInt8, reduce_range=reduced,
                             op_types_to_quantize=["MatMul", "Gemm"])

    return write


def qdq(name, shapes):
    """QuantizeLinear and DequantizeLinear around what is computed in 8 bits, scales from a few random inputs."""

    def write(out):
        import numpy
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Inputs(CalibrationDataReader):
            def __init__(self):
                random = numpy.random.default_rng(0)
                self.left = iter([{name: make(random) for name, make in shapes.items()} for _ in range(4)])

            def get_next(self):
                return next(self.left, None)

        with tempfile.TemporaryDirectory() as folder:
            plain, ready = Path(folder) / "plain.onnx", Path(folder) / "ready.onnx"
            MODELS[name](plain)
            quant_pre_process(plain, ready, skip_symbolic_shape=True)
            quantize_static(ready, out, Inputs(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
                            weight_type=QuantType.QInt8, per_channel=True,
                            op_types_to_quantize=["Conv", "MatMul", "Gemm", "Add", "MaxPool", "GlobalAveragePool"])

    return write


def operation(name, shape, dtype="FLOAT", out=None, **attributes):
    """One operation on one input, which is as large as its output unless `out` says."""

    def write(path):
        import numpy
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        scalar = getattr(TensorProto, dtype)
        axis = [numpy_helper.from_array(numpy.array(1), "axis")] if name == "CumSum" else []
        node = helper.make_node(name, ["x"] + ["axis"] * len(axis), ["y"], **attributes)
        ends = [helper.make_tensor_value_info(end, scalar, size) for end, size in [("x", shape), ("y", out or shape)]]
        graph = helper.make_graph([node], name, ends[:1], ends[1:], axis)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8), path)

    return write


def dims(path):
    """Names of the dynamic dims of a model's inputs."""
    import onnx

    inputs = onnx.load(path, load_external_data=False).graph.input
    names = {dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim}
    return sorted(names - {""})


IMAGE = {"x": lambda random: random.standard_normal((1, 3, 224, 224)).astype("float32")}
TOKENS = {
    "input_ids": lambda random: random.integers(5, 1000, (1, 128)),
    "attention_mask": lambda random: random.integers(1, 2, (1, 128)),
    "token_type_ids": lambda random: random.integers(0, 1, (1, 128)),
}

MODELS = {
    **{name: zoo(name) for name in ["bert-base", "bert-base-tiny", "distilroberta", "albert-base", "mlp", "lstm"]},
    **{name: vision(name) for name in ["resnet18", "resnet50", "mobilenet_v3_small", "mobilenet_v3_large",
                                       "convnext_tiny", "vit_b_16"]},
    "vit_b_16-dynamo": vision("vit_b_16", dynamo=True),
    "whisper-tiny": whisper,
    "gpt2": decoder(gpt2),
    "llama-110m": decoder(llama),
    "qwen-6": decoder(qwen),
    "t5-small": t5,
    "detr-resnet50": detr,
    "tagger": tagger,
    "bert-base-int8": dynamic_int8("bert-base"),
    "bert-base-int7": dynamic_int8("bert-base", reduced=True),
    "bert-base-qdq": qdq("bert-base", TOKENS),
    "resnet18-qdq": qdq("resnet18", IMAGE),
    "resnet50-qdq": qdq("resnet50", IMAGE),
    "reduce-max": operation("ReduceMax", [1, 1048576], out=[1, 1], axes=[1]),
    "transpose": operation("Transpose", [4096, 4096], "FLOAT16", perm=[1, 0]),
    "transposes": operation("Transpose", [32, 384, 768], "FLOAT16", out=[32, 768, 384], perm=[0, 2, 1]),
    "column-means": operation("ReduceMean", [32, 384, 768], out=[32, 768], axes=[1], keepdims=0),
    "running-sums": operation("CumSum", [4096, 4096]),
    "log-softmax": operation("LogSoftmax", [256, 50257], axis=1),
}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--dims", path]:
            print("\n".join(dims(path)))
        case [name, out] if name in MODELS:
            MODELS[name](out)
        case _:
            sys.exit("models.py NAME OUT.onnx, where NAME is one of:\n  " + "\n  ".join(MODELS))
