#!/usr/bin/env python3
"""Compares graphene-run with onnxruntime on the CPU, model by model, and prints one table.

    benches/peers/cpu.py [ROW ...] [--threads 1,2] [--exec fused,library] [--results cpu.json] [--list]

A row is a model at a size. Every side runs in a process of its own, in turn with the others, some rounds long: a busy
machine slows all of them. Times are medians of all rounds' medians, after a warm-up and without loading; peaks are what a
process takes beyond one that loads no model, `graphene-run --version` and a Python that has imported onnxruntime. Models are
written once, to target/peers/, by `models.py`.
"""

import argparse
import datetime
import functools
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import models

HERE = Path(__file__).resolve().parent
TOKENS = [{"batch": 1, "sequence": 16}, {"batch": 1, "sequence": 128}, {"batch": 8, "sequence": 128}]
STEPS = {
    "step": {"batch": 1, "sequence": 1, "past": 255, "total": 256},
    "prefill": {"batch": 1, "sequence": 128, "past": 0, "total": 128},
}


def rows():
    """Each row: its name, model and sizes."""
    for sizes in TOKENS:
        yield f"bert-base {sizes['batch']}x{sizes['sequence']}", "bert-base", sizes
    yield "bert-base-tiny 1x32", "bert-base-tiny", {"batch": 1, "sequence": 32}
    for name in ["distilroberta", "albert-base", "bert-base-int8", "bert-base-int7", "bert-base-qdq"]:
        yield f"{name} 1x128", name, TOKENS[1]
    yield "mlp 1", "mlp", {"batch": 1}
    for batch in [1, 32]:
        yield f"lstm {batch}x64", "lstm", {"batch": batch, "time": 64}
    for name in ["resnet18", "resnet50", "mobilenet_v3_small", "mobilenet_v3_large", "convnext_tiny", "vit_b_16",
                 "vit_b_16-dynamo", "resnet18-qdq", "resnet50-qdq", "whisper-tiny"]:
        yield f"{name} 1", name, {"batch": 1}
    for name in ["gpt2", "llama-110m"]:
        for kind, sizes in STEPS.items():
            yield f"{name} {kind}", name, sizes


ROWS = {name: (model, sizes) for name, model, sizes in rows()}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help="rows, or the beginnings of their names; all if none is given")
    parser.add_argument("--bin", type=Path, default=models.ROOT / "target/release", help="where graphene-run and graphene-models are")
    parser.add_argument("--exec", default="fused", help="executors of graphene-run")
    parser.add_argument("--threads", default="2", help="comma-separated")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a side runs in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write every measurement to this JSON file")
    parser.add_argument("--table", type=Path, help="write the table of benches/results/ to this JSON file")
    parser.add_argument("--machine", default="", help="what the table says of the machine")
    parser.add_argument("--without-avx512", action="store_true", help="hide AVX-512, AVX-VNNI and AMX from all sides; needs cc, and an Intel CPU")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    return parser.parse_args()


# Libraries that are preloaded into what is timed.
preloaded = []


def hide_avx512():
    """Lets all that is timed take the machine for one without AVX-512."""
    library = models.ROOT / "target/peers/without_avx512.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "without_avx512.c"], check=True)
    preloaded.append(str(library))


def run(command, threads):
    """Standard output and peak resident bytes of a command, or the reason that it failed."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    if preloaded:
        environment["LD_PRELOAD"] = " ".join([*preloaded, os.environ.get("LD_PRELOAD", "")])
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    except OSError as error:
        return None, None, f"{command[0]}: {error.strerror}"
    complaint, peak = [], [0]
    reader = threading.Thread(target=lambda: complaint.append(child.stderr.read()))
    watcher = threading.Thread(target=lambda: watch(child.pid, peak))
    reader.start()
    watcher.start()
    output = child.stdout.read()
    reader.join()
    watcher.join()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        lines = complaint[0].decode(errors="replace").strip().splitlines()
        return None, None, f"exit {child.returncode}: {lines[-1] if lines else 'no message'}"
    return output, usage.ru_maxrss if sys.platform == "darwin" else peak[0], None


def watch(pid, peak):
    """Writes the peak resident bytes of a process since its program began, until it ends: `wait4` counts its parent's, too.
    It looks often at first, for a process that loads no model ends within milliseconds."""
    begun = time.monotonic()
    while True:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        found = re.search(r"VmHWM:\s*(\d+) kB", status)
        if not found:
            return
        peak[0] = int(found[1]) << 10
        time.sleep(min(0.02, (time.monotonic() - begun) / 20))


@functools.cache
def unloaded(*command):
    """Peak resident bytes of a process that loads no model: the most of five, for each may be seen too early."""
    peaks = []
    for _ in range(5):
        _, peak, failure = run(command, 1)
        if failure:
            sys.exit(failure)
        peaks.append(peak)
    return max(peaks)


def graphene(given, model, dims, threads, executor):
    command = [given.bin / "graphene-run", model, *dims, "--json", "--exec", executor, "--threads", str(threads),
               "--duration", f"{given.seconds:g}s", "--device", "cpu"]
    output, peak, failure = run(command, threads)
    if failure:
        return None, failure
    [report] = json.loads(output)["executors"]
    return (report["time"]["median_ms"] / 1e3, peak - unloaded(given.bin / "graphene-run", "--version")), None


def onnxruntime(given, model, dims, threads):
    alone = [sys.executable, HERE / "onnxruntime_cpu.py"]
    output, peak, failure = run([*alone, model, *dims, "--threads", str(threads), "--seconds", f"{given.seconds:g}"], threads)
    return (None, failure) if failure else ((json.loads(output)["median_s"], peak - unloaded(*alone)), None)


def prepared(model, sizes):
    """The model's file, and options for the sizes of those dims that it has."""
    path = models.ROOT / f"target/peers/{model}.onnx"
    script = HERE / "models.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, script, model, path], check=True, stdout=subprocess.DEVNULL)
    known = subprocess.run([sys.executable, script, "--dims", path], check=True, stdout=subprocess.PIPE, text=True)
    named = [option for name in known.stdout.split() if name in sizes for option in ("--dim", f"{name}={sizes[name]}")]
    return path, named


def compare(given, name, threads):
    """Measurements {side: [(seconds, peak)]} and failures {side: reason}."""
    model, sizes = ROWS[name]
    path, dims = prepared(model, sizes)
    sides = {"onnxruntime": lambda: onnxruntime(given, path, dims, threads)}
    for executor in given.exec.split(","):
        sides[executor] = lambda executor=executor: graphene(given, path, dims, threads, executor)
    measured, failures = {}, {}
    for _ in range(given.rounds):
        for side, measure in sides.items():
            if side not in failures:
                row, failure = measure()
                if failure:
                    failures[side] = failure
                else:
                    measured.setdefault(side, []).append(row)
    return measured, failures


def table(given, every):
    """What `--bin results` prints of all rows: medians, their range over the rounds, and peaks."""
    executors = given.exec.split(",")
    columns = ["row", "threads", "onnxruntime", "MiB"]
    for executor in executors:
        columns += [executor, "MiB", "ratio"]
    lines = []
    for row in every:
        cells = [row["row"], str(row["threads"])]
        for side in ["onnxruntime", *executors]:
            taken = row["runs"].get(side)
            if not taken:
                cells += ["failed", ""] + [""] * (side != "onnxruntime")
                continue
            seconds = sorted(seconds for seconds, _ in taken)
            middle = statistics.median(seconds)
            if side == "onnxruntime":
                base = middle
            cells.append(f"{middle * 1e3:.3g} ms ({seconds[0] * 1e3:.3g} to {seconds[-1] * 1e3:.3g})")
            cells.append(str(max(peak for _, peak in taken) >> 20))
            cells += [f"{middle / base:.2f}"] * (side != "onnxruntime")
        lines.append(cells)
    options = [option for option in sys.argv[1:] if not option.startswith(("--table=", "--machine=", "--bin="))]
    return {
        "title": "Models on a CPU, beside onnxruntime",
        "command": shlex.join(["benches/peers/cpu.py", *options]),
        "date": datetime.date.today().isoformat(),
        "machine": given.machine,
        "columns": columns,
        "rows": lines,
        "notes": [
            "Ratios are of onnxruntime's time; below 1 is faster. Times are medians of the rounds, with the least and the most.",
            "Weights are random, of the public models' sizes; `models.py` writes them. MiB are peaks beyond those of a process that loads no model.",
        ],
    }


def line(name, threads, measured, failures):
    """The row's line, and the ratio of each executor's time to onnxruntime's."""
    base = measured.get("onnxruntime")
    cells, ratios = [], {}
    for side, taken in measured.items():
        seconds = sorted(seconds for seconds, _ in taken)
        middle, peak = statistics.median(seconds), max(peak for _, peak in taken)
        cell = f"{side} {middle * 1e3:.3g} ms ({seconds[0] * 1e3:.3g} to {seconds[-1] * 1e3:.3g}), {peak >> 20} MiB"
        if base and side != "onnxruntime":
            ratios[side] = middle / statistics.median(seconds for seconds, _ in base)
            cell += f", ratio {ratios[side]:.2f}"
        cells.append(cell)
    cells += [f"{side} failed: {reason}" for side, reason in failures.items()]
    return f"{name:<24} {threads} threads: " + "; ".join(cells), ratios


def main():
    given = arguments()
    chosen = [name for name in ROWS if not given.row or any(name.startswith(row) for row in given.row)]
    if given.list or not chosen:
        print("\n".join(ROWS))
        return 0 if given.list else 2
    if given.without_avx512:
        hide_avx512()
    os.environ.setdefault("GRAPHENE_MODELS", str(given.bin / "graphene-models"))
    every, ratios, failed = [], {}, False
    for threads in map(int, given.threads.split(",")):
        for name in chosen:
            try:
                measured, failures = compare(given, name, threads)
            except (OSError, subprocess.CalledProcessError):
                measured, failures = {}, {"models.py": "its complaint is above; README.md says what it needs"}
            text, of_row = line(name, threads, measured, failures)
            print(text, flush=True)
            for side, ratio in of_row.items():
                ratios.setdefault((side, threads), []).append(ratio)
            failed |= bool(failures)
            every.append({"row": name, "threads": threads, "runs": measured, "failures": failures})
            if given.table:
                given.table.write_text(json.dumps(table(given, every), indent=2, ensure_ascii=False) + "\n")
            if given.results:
                given.results.write_text(json.dumps(every, indent=2))
    for (side, threads), taken in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, taken)))
        print(f"{side}, {threads} threads: geometric mean of {len(taken)} ratios {mean:.2f}, largest {max(taken):.2f}")
    print("ratios are of onnxruntime's time: below 1 is faster")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
