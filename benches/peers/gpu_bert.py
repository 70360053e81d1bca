"""BERT-base in fp16 by PyTorch on a GPU: eager inside a CUDA graph, and torch.compile with CUDA graphs.

What `cargo run --release -p graphene-benches --bin device -- models` is compared with: run both on one machine, one
after the other. Needs torch and transformers. A line of JSON for each shape: medians in microseconds.
"""

import json
import statistics

import torch
from transformers import BertConfig, BertModel

SHAPES = [(1, 128), (7, 93), (32, 128), (32, 384)]


def median(run, count=30):
    """The median time of `run`, between events on the device."""
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return statistics.median(times)


def captured(model, inputs):
    """The model's launches as one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(**inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(**inputs)
    return graph.replay


def main():
    torch.manual_seed(0)
    model = BertModel(BertConfig()).half().cuda().eval()
    with torch.inference_mode():
        for batch, sequence in SHAPES:
            ids = torch.randint(3, 999, (batch, sequence), device="cuda")
            mask = torch.ones_like(ids)
            mask[1::2, sequence - sequence // 5 :] = 0
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
            row = {"batch": batch, "sequence": sequence}
            row["eager in a CUDA graph"] = round(median(captured(model, inputs)), 1)
            torch._dynamo.reset()
            compiled = torch.compile(model, mode="reduce-overhead")
            row["torch.compile"] = round(median(lambda: compiled(**inputs)), 1)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
