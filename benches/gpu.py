#!/usr/bin/env python3
"""Everything that only a GPU can show, row by row: right, then fast, beside the peers. Results are kept in one JSON file.

    benches/gpu.py [--rows atoms,speed] [--results gpu.json] [--bin target/release] [--list]

A row that was right on this GPU with these binaries is not run again (`--again` runs it); so a run that was cut off
goes on where it stopped. Every row ends within its own limit. The binaries `device` and `graphene-run` are built by
`cargo build --release -p graphene-benches --bins -p graphene-run`, the test of the row `node-suite` by
`cargo test --release -p graphene-runtime --test node_suite --no-run`; rows whose name begins with `torch` need PyTorch
(and transformers), those that begin with `sanitizer` need compute-sanitizer. What is missing is reported as skipped.

The exit code is 0 if all that ran is right, 4 if something is not, 6 if there is no GPU.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "frontend/tests/data/fixtures"
SKIPPED = 6

# Small inputs for the sanitizers, under which everything is some hundred times slower.
SANITIZED = ["bert-tiny", "bert-tiny-sdpa", "lstm", "lstm-cell-relu", "mlp-8x64"]
TOOLS = ["memcheck", "racecheck"]
# What goes on inside a library's kernels is not ours: racecheck reports cuDNN's own attention.
EXECUTORS = {"memcheck": "fused,library", "racecheck": "fused"}

# The tools are also run over every template's kernels, at the sizes of the device program's checks.
TEMPLATES = ["atoms", "templates", "attention", "matmuls", "cell", "gated", "recurrent", "convolutions"]

BERTS = ["bert-base", "bert-large", "roberta-base", "albert-base", "distilroberta", "xlm-roberta-base"]


class Row:
    """What runs: commands with their limits in seconds, each of which prints lines of JSON among others."""

    def __init__(self, name, commands, keep_text=False):
        self.name, self.commands, self.keep_text = name, commands, keep_text


def rows(binaries):
    """All rows, in the order in which they run."""
    device, run = str(binaries / "device"), str(binaries / "graphene-run")
    for name in ["atoms", "matmuls", "attention", "templates", "recurrent", "convolutions", "speed", "single",
                 "sustained", "cell", "gated", "library", "layers", "sdpa", "models"]:
        yield Row(name, [([device, name], 560)])
    for name in BERTS:
        yield Row(f"model-{name}", [([device, f"models={name}"], 560)])
    yield Row("torch-bert", [([sys.executable, str(ROOT / "benches/peers/gpu_bert.py")], 400)])
    yield Row("torch-kernels", [([sys.executable, str(ROOT / "benches/peers/gpu_kernels.py")], 300)])
    for dtype in ["model", "tf32", "f16", "bf16"]:
        yield Row(f"fixtures-{dtype}", list(fixtures(run, dtype)), keep_text=True)
    for tool in TOOLS:
        commands = []
        for fixture in SANITIZED:
            for dtype in ["model", "tf32", "f16"]:
                model = [str(FIXTURES / fixture / "model.onnx"), "--device", "cuda", "--dtype", dtype]
                short = ["--exec", EXECUTORS[tool], "--iterations", "1", "--warmup", "0ms", "--duration", "0ms"]
                commands.append((["compute-sanitizer", "--tool", tool, run, *model, *short], 240))
        yield Row(f"sanitizer-{tool}-fixtures", commands, keep_text=True)
        for name in TEMPLATES:
            command = ["compute-sanitizer", "--tool", tool, device, "--quick", name]
            yield Row(f"sanitizer-{tool}-{name}", [(command, 540)], keep_text=True)
    yield Row("node-suite", [([suite(binaries)], 400)], keep_text=True)
    yield Row("command", list(commands_of(run)), keep_text=True)


def suite(binaries):
    """The node suite's test: in this folder, or where `cargo test` leaves it."""
    built = [path for path in binaries.glob("deps/node_suite-*") if not path.suffix]
    return str(max(built, key=lambda path: path.stat().st_mtime, default=binaries / "node_suite"))


def fixtures(run, dtype):
    """Every fixture against its recorded outputs, by both executors."""
    for folder in sorted(FIXTURES.glob("*/")):
        for data in sorted(folder.glob("test_data_set_*")):
            model = [str(folder / "model.onnx"), "--data", str(data), "--device", "cuda", "--dtype", dtype]
            short = ["--exec", "fused,library", "--iterations", "3", "--warmup", "0ms", "--duration", "0ms"]
            yield [run, *model, *short], 60


def commands_of(run):
    """A start without compiled kernels, one with them, and a shape after another."""
    cold = ["--dtype", "f16", "--device", "cuda", "--exec", "fused", "--duration", "200ms", "--json"]
    for shape in [("32", "128"), ("32", "128"), ("1", "128"), ("32", "384")]:
        yield [run, "zoo:bert-base", "--batch", shape[0], "--seq", shape[1], *cold], 90


def objects(text):
    """The lines, or all of it, that are JSON objects."""
    try:
        whole = json.loads(text)
        return [whole] if isinstance(whole, dict) else []
    except ValueError:
        pass
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def attempt(row, environment):
    """Runs a row's commands; their results, and whether all were right."""
    begun, parts = time.monotonic(), []
    for command, limit in row.commands:
        if shutil.which(command[0]) is None:
            parts.append({"command": command[1:], "outcome": "skipped", "why": f"{command[0]} was not found"})
            continue
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment, cwd=ROOT)
            outcome = {0: "right", SKIPPED: "skipped"}.get(done.returncode, "wrong")
            out, err, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            decode = lambda data: (data or b"").decode(errors="replace")
            outcome, out, err, code = "out of time", decode(late.stdout), decode(late.stderr), None
        summaries = [line.strip("= ") for line in (out + err).splitlines() if "SUMMARY" in line]
        if "compute-sanitizer" in command[0] and outcome == "right":
            clean = summaries and all(re.search(r": 0 (errors|hazards)", line) for line in summaries)
            outcome = "right" if clean else "wrong"
        # The suite says by an ignored test that it found no GPU.
        if outcome == "right" and re.search(r"^test on_a_gpu .*ignored", out, re.MULTILINE):
            outcome = "skipped"
        summaries += [line for line in out.splitlines() if line.startswith("on the GPU:")]
        part = {"command": [Path(command[0]).name, *command[1:]], "outcome": outcome, "exit": code, "results": objects(out)}
        if summaries:
            part["summaries"] = summaries
        if outcome != "right" or row.keep_text and not part["results"]:
            # A sanitizer says on stdout, among results, what it found.
            lines = [line for line in out.splitlines() if line.startswith("=========")]
            part["said"] = "\n".join([err or out, *lines[:40]])[-6000:]
        parts.append(part)
        print(".", end="", file=sys.stderr, flush=True)
    outcomes = {part["outcome"] for part in parts}
    worst = next((o for o in ["wrong", "out of time", "skipped"] if o in outcomes), "right")
    return {"outcome": worst, "seconds": round(time.monotonic() - begun, 1), "parts": parts}


def digest(binaries):
    """What the binaries are, in short."""
    sums = hashlib.sha256()
    for path in [binaries / "device", binaries / "graphene-run", Path(suite(binaries))]:
        sums.update(path.read_bytes() if path.exists() else b"")
    return sums.hexdigest()[:16]


def gpu():
    """The GPU and its driver, by nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def save(path, results):
    """All at once, so that a run that is cut off leaves the file whole."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        json.dump(results, file, indent=1)
    os.replace(temporary, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="comma-separated; a name stands for all that begin with it and a `-` too")
    parser.add_argument("--results", type=Path, default=ROOT / "target/gpu.json")
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release")
    parser.add_argument("--again", action="store_true", help="run rows that have results already")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    given = parser.parse_args()
    every = list(rows(given.bin.resolve()))
    wanted = given.rows.split(",") if given.rows else [row.name for row in every]
    chosen = [row for row in every if any(row.name == name or row.name.startswith(name + "-") for name in wanted)]
    unknown = [name for name in wanted if not any(row.name == name or row.name.startswith(name + "-") for row in every)]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; --list names them")
    if given.list:
        print("\n".join(row.name for row in chosen))
        return 0
    found = gpu()
    if found is None:
        print("skipped: nvidia-smi finds no GPU", file=sys.stderr)
        return SKIPPED
    given.results.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(given.results.read_text()) if given.results.exists() else {"rows": {}}
    on = {"gpu": found, "binaries": digest(given.bin)}
    environment = dict(os.environ)
    environment.setdefault("GRAPHENE_CACHE", tempfile.mkdtemp(prefix="graphene-gpu-"))
    for row in chosen:
        known = results["rows"].get(row.name)
        if known and known["on"] == on and known["outcome"] == "right" and not given.again:
            print(f"{row.name}: {known['outcome']} (kept)")
            continue
        # A start without compiled kernels has a cache of its own.
        with tempfile.TemporaryDirectory(prefix="graphene-cold-") as cold:
            fresh = {"GRAPHENE_CACHE": cold} if row.name == "command" else {}
            outcome = attempt(row, environment | fresh)
        results["rows"][row.name] = {"on": on, **outcome}
        save(given.results, results)
        print(f"\r{row.name}: {outcome['outcome']}, {outcome['seconds']} s", flush=True)
    outcomes = [results["rows"][row.name]["outcome"] for row in chosen]
    print(f"{outcomes.count('right')} right, {outcomes.count('skipped')} skipped, of {len(outcomes)}: {given.results}")
    return 0 if all(outcome in ("right", "skipped") for outcome in outcomes) else 4


if __name__ == "__main__":
    sys.exit(main())
