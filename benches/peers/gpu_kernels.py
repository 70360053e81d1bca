"""Single kernels of PyTorch's libraries on a GPU: cuBLASLt's matmuls, attention, normalisations, cuDNN's LSTM.

What the rows `speed`, `attention`, `templates` and `recurrent` of `cargo run --release -p graphene-benches --bin device` are
compared with: `benches/gpu.py` runs both, one after the other. Needs torch. A line of JSON for each figure: medians in
microseconds of one call inside a CUDA graph of several; buffers of what is bound by memory are rotated, so that the L2
cache does not hold them.
"""

import json
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HALF = torch.float16
MATMULS = [(4096, 4096, 4096), (8192, 8192, 8192), (5376, 5376, 2048), (12288, 768, 768), (12288, 2304, 768),
            (12288, 3072, 768), (12288, 768, 3072), (4096, 3072, 768), (4096, 768, 3072),
            (128, 768, 768), (128, 3072, 768), (128, 768, 3072)]
GATED = [(4096, 8192, 2048), (16, 8192, 2048), (1, 8192, 2048)]
CELLS = [(1024, 1024, 1024), (4096, 1024, 1024)]
ATTENTION = [(32, 12, 128, 64), (32, 12, 384, 64), (32, 16, 384, 64), (1, 12, 128, 64), (8, 16, 2048, 64),
             (32, 16, 384, 128), (4, 16, 4096, 128)]
ROWS = [(12288, 768), (4096, 1024), (4096, 4096)]
LSTM = [(64, 32, 512, 512), (64, 128, 1024, 1024)]


def graph_time(run, inner=10, count=15):
    """The median microseconds of one call, inside a graph of `inner`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            run()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / inner)
    return round(statistics.median(times), 2)


def random(*shape):
    return torch.randn(*shape, device="cuda").to(HALF)


def rotated(make, bytes_each):
    """As many buffers as the L2 cache does not hold together, one after the other."""
    buffers = [make() for _ in range(max(2, 200_000_000 // bytes_each))]
    turn = [0]

    def next_one():
        turn[0] += 1
        return buffers[turn[0] % len(buffers)]

    return next_one


def matmuls():
    for m, n, k in MATMULS:
        a, w, bias = random(m, k), random(n, k), random(n)
        out = torch.empty(m, n, device="cuda", dtype=HALF)
        yield {"row": "matmul", "m": m, "n": n, "k": k,
               "plain": graph_time(lambda: torch.matmul(a, w.t(), out=out)),
               "bias, ReLU": graph_time(lambda: torch._addmm_activation(bias, a, w.t())),
               "bias, GELU": graph_time(lambda: torch._addmm_activation(bias, a, w.t(), use_gelu=True))}


def gated():
    for m, n, k in GATED:
        a, both = random(m, k), random(2 * n, k)
        sums = torch.empty(m, 2 * n, device="cuda", dtype=HALF)
        torch._dynamo.reset()
        gate = torch.compile(lambda sums: F.silu(sums[:, :n]) * sums[:, n:], dynamic=False)
        gate(sums)
        layer = torch.compile(lambda a: F.silu(a @ both[:n].t()) * (a @ both[n:].t()), dynamic=False)
        layer(a)

        def run():
            torch.matmul(a, both.t(), out=sums)
            gate(sums)

        yield {"row": "gated", "m": m, "n": n, "k": k, "cuBLASLt, then torch.compile": graph_time(run),
               "matmul": graph_time(lambda: torch.matmul(a, both.t(), out=sums)),
               "pointwise": graph_time(lambda: gate(sums)), "torch.compile": graph_time(lambda: layer(a))}


def cells():
    """relu(x·W + h·U + b) by a kernel for each of its five operations."""
    for m, n, k in CELLS:
        x, h, w, u, bias = random(m, k), random(m, k), random(k, n), random(k, n), random(n)
        sums, others = (torch.empty(m, n, device="cuda", dtype=HALF) for _ in range(2))

        def run():
            torch.matmul(x, w, out=sums)
            torch.matmul(h, u, out=others)
            torch.add(sums, others, out=sums)
            torch.add(sums, bias, out=sums)
            torch.relu_(sums)

        yield {"row": "cell", "m": m, "n": n, "k": k, "five kernels": graph_time(run)}


def attention():
    for batch, heads, rows, dim in ATTENTION:
        q, k, v = (random(batch, heads, rows, dim) for _ in range(3))
        mask = torch.zeros(batch, 1, 1, rows, device="cuda", dtype=HALF)
        mask[1::2, :, :, rows - rows // 5:] = -10_000.0
        mask = mask.expand(batch, heads, rows, rows)
        row = {"row": "attention", "batch": batch, "heads": heads, "rows": rows, "dim": dim}
        flash, cudnn = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
        cases = [("FlashAttention-2", flash, {}), ("cuDNN", cudnn, {}), ("cuDNN, masked", cudnn, {"attn_mask": mask}),
                 ("FlashAttention-2, causal", flash, {"is_causal": True}), ("cuDNN, causal", cudnn, {"is_causal": True})]
        for name, backend, given in cases:
            with sdpa_kernel(backend):
                row[name] = graph_time(lambda: F.scaled_dot_product_attention(q, k, v, **given))
        yield row


def normalisations():
    for rows, columns in ROWS:
        weight, bias = random(columns), random(columns)
        norm = lambda x: F.layer_norm(x, (columns,), weight, bias)
        soft = lambda x: F.softmax(x, -1)
        each = rotated(lambda: random(rows, columns), rows * columns * 2)
        row = {"row": "rows", "rows": rows, "columns": columns}
        for name, function in [("layer norm", norm), ("softmax", soft)]:
            row[name] = graph_time(lambda: function(each()))
            torch._dynamo.reset()
            compiled = torch.compile(function, dynamic=False)
            compiled(each())
            row[f"{name}, torch.compile"] = graph_time(lambda: compiled(each()))
        row["clone"] = graph_time(lambda: each().clone())
        yield row


def recurrent():
    for steps, batch, inputs, hidden in LSTM:
        layer = torch.nn.LSTM(inputs, hidden).half().cuda()
        x = random(steps, batch, inputs)
        yield {"row": "LSTM", "steps": steps, "batch": batch, "inputs": inputs, "hidden": hidden,
               "cuDNN": graph_time(lambda: layer(x), inner=3)}


def main():
    torch.manual_seed(0)
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version(), "gpu": torch.cuda.get_device_name()}))
    with torch.inference_mode():
        for part in (matmuls, gated, cells, attention, normalisations, recurrent):
            for row in part():
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
