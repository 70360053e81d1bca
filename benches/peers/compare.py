#!/usr/bin/env python3
"""Runs graphene-run and onnxruntime alternately on one model and prints one table of the medians."""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = [(8, 128), (32, 128)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphene-run", required=True, help="the graphene-run binary")
    parser.add_argument("--model", required=True, help="the ONNX file that both sides run")
    parser.add_argument("--exec", default="fused,library", help="executors of graphene-run")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="alternations per shape")
    parser.add_argument("--shape", action="append", help="BATCHxSEQ; 8x128 and 32x128 by default")
    parser.add_argument("--json", help="write every measurement to this file")
    return parser.parse_args()


def parse_graphene(report):
    """Median seconds by executor, from graphene-run's JSON report."""
    return {run["name"]: run["time"]["median_ms"] / 1e3 for run in report["executors"]}


def run(command, threads):
    """Standard output and peak resident bytes of a command, or the reason that it failed.

    The peak is the child's own, from wait4, so neither side reports it about itself.
    """
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=environment)
    except OSError as error:
        return None, None, f"{command[0]}: {error.strerror}"
    complaint = []
    reader = threading.Thread(target=lambda: complaint.append(child.stderr.read()))
    reader.start()
    output = child.stdout.read()
    reader.join()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if child.returncode != 0:
        lines = complaint[0].decode(errors="replace").strip().splitlines()
        return None, peak, f"exit {child.returncode}: {lines[-1] if lines else 'no message'}"
    return output.decode(errors="replace"), peak, None


def graphene(chosen, batch, seq, executor):
    command = [chosen.graphene_run, chosen.model, "--batch", str(batch), "--seq", str(seq),
               "--json", "--exec", executor, "--threads", str(chosen.threads),
               "--duration", f"{chosen.seconds:g}s"]
    output, peak, failure = run(command, chosen.threads)
    if failure:
        return {}, failure
    try:
        rows = parse_graphene(json.loads(output))
    except (json.JSONDecodeError, KeyError) as error:
        return {}, f"its JSON could not be read: {error!r}"
    return {f"graphene {name}": (seconds, peak) for name, seconds in rows.items()}, None


def onnxruntime(chosen, batch, seq):
    command = [sys.executable, os.path.join(HERE, "onnxruntime_bert.py"), chosen.model,
               "--batch", str(batch), "--seq", str(seq), "--threads", str(chosen.threads),
               "--seconds", f"{chosen.seconds:g}"]
    output, peak, failure = run(command, chosen.threads)
    if failure:
        return {}, failure
    return {"onnxruntime": (json.loads(output)["median_s"], peak)}, None


def compare(chosen, batch, seq):
    """Measurements {runner: [(seconds, peak)]} and failures {runner: reason}; the two sides are interleaved."""
    measured, failures = {}, {}
    executors = [name for name in chosen.exec.split(",") if name]
    # One process per executor, so that each has a peak of its own.
    sides = {f"graphene {name}": functools.partial(graphene, executor=name) for name in executors}
    for _ in range(chosen.rounds):
        for name, side in [("onnxruntime", onnxruntime), *sides.items()]:
            rows, failure = side(chosen, batch, seq)
            if failure:
                failures.setdefault(name, failure)
            for runner, row in rows.items():
                measured.setdefault(runner, []).append(row)
    return measured, failures


def table(shape, measured, failures):
    summary = {
        name: (statistics.median(seconds for seconds, _ in rows), max(peak for _, peak in rows))
        for name, rows in measured.items()
    }
    base = summary.get("onnxruntime")
    for name, (seconds, peak) in summary.items():
        ratios = (f"{seconds / base[0]:7.2f}", f"{peak / base[1]:7.2f}") if base else ("", "")
        print(f"{shape:>8}  {name:<20} {seconds * 1e3:10.2f} ms {ratios[0]:>7}"
              f" {peak / 2**20:9.0f} MiB {ratios[1]:>7}")
    for name, failure in failures.items():
        print(f"{shape:>8}  {name:<20} failed: {failure}")


def main():
    chosen = arguments()
    try:
        shapes = [tuple(map(int, shape.split("x"))) for shape in chosen.shape or []] or SHAPES
        shapes = [(batch, seq) for batch, seq in shapes]
    except ValueError:
        sys.exit("--shape is BATCHxSEQ, such as 8x128")
    print(f"{'shape':>8}  {'runner':<20} {'median':>13} {'ratio':>7} {'peak':>13} {'ratio':>7}")
    every, failed = [], False
    for batch, seq in shapes:
        measured, failures = compare(chosen, batch, seq)
        table(f"{batch}x{seq}", measured, failures)
        sys.stdout.flush()
        failed |= bool(failures)
        every.append({"batch": batch, "seq": seq, "runs": measured, "failures": failures})
    print("ratios are to onnxruntime: below 1 is faster, or smaller")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(every, file, indent=2)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
