#!/usr/bin/env python3
"""Times onnxruntime on the CPU for one model at one size, and prints one JSON object.

Inputs are made from the session's own signature: token ids below --vocabulary, masks of ones, token
types of zero, positions from 0; any float input is standard normal. Times are seconds per run.
"""

import argparse
import json
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="ONNX file; without one, only what a run needs is imported")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="size of a dynamic dim")
    parser.add_argument("--threads", type=int, default=2, help="intra-op threads")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to time")
    parser.add_argument("--warmup", type=int, default=2, help="runs before timing")
    parser.add_argument("--iterations", type=int, default=5, help="least number of timed runs")
    parser.add_argument("--vocabulary", type=int, default=1000, help="token ids are below this")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for name in ("threads", "iterations", "vocabulary"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return chosen


def feeds(session, numpy, chosen):
    """Arrays for every input of the session, its dynamic dims as --dim says."""
    random = numpy.random.default_rng(chosen.seed)
    sizes = {name: int(size) for name, size in (dim.split("=") for dim in chosen.dim)}
    result = {}
    for value in session.get_inputs():
        missing = [dim for dim in value.shape if not isinstance(dim, int) and dim not in sizes]
        if missing:
            sys.exit(f"input {value.name}: --dim {missing[0]}=N is needed")
        dims = [dim if isinstance(dim, int) else sizes[dim] for dim in value.shape]
        if value.type == "tensor(int64)":
            if "mask" in value.name:
                array = numpy.ones(dims, numpy.int64)
            elif "type" in value.name:
                array = numpy.zeros(dims, numpy.int64)
            elif "position" in value.name:
                array = numpy.broadcast_to(numpy.arange(dims[-1]), dims).copy()
            else:
                # Ids 0 to 4 are special tokens, padding among them.
                array = random.integers(min(5, chosen.vocabulary - 1), chosen.vocabulary, dims)
        elif value.type == "tensor(float)":
            array = random.standard_normal(dims, numpy.float32)
        else:
            sys.exit(f"input {value.name} has type {value.type}, which this script cannot fill")
        result[value.name] = array
    return result


def measure(chosen):
    import numpy
    import onnxruntime

    if chosen.model is None:
        return {"version": onnxruntime.__version__}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = chosen.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    begun = time.perf_counter()
    session = onnxruntime.InferenceSession(
        chosen.model, options, providers=["CPUExecutionProvider"]
    )
    load = time.perf_counter() - begun
    inputs = feeds(session, numpy, chosen)
    for _ in range(chosen.warmup):
        outputs = session.run(None, inputs)
    times = []
    begun = time.perf_counter()
    while len(times) < chosen.iterations or time.perf_counter() - begun < chosen.seconds:
        start = time.perf_counter()
        outputs = session.run(None, inputs)
        times.append(time.perf_counter() - start)
    return {
        "version": onnxruntime.__version__,
        "runs": len(times),
        "load_s": load,
        "median_s": float(numpy.median(times)),
        "min_s": min(times),
        "max_s": max(times),
        "finite": all(bool(numpy.isfinite(output).all()) for output in outputs),
    }


if __name__ == "__main__":
    print(json.dumps(measure(arguments())))
