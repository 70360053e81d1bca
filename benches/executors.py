#!/usr/bin/env python3
"""Fused execution beside library execution, on the models that people bring: `executors.py [ROW...]`.

Prints a line a row: the median times of both, their ratio (below 1 fused is faster), and by how much a median differs from
round to round. Rows that are slower than the library by more than 2 % beyond that difference are marked; then the geometric
means. The exit code is 4 if a row is marked or fails, else 0. Models are those of `peers/models.py`, written once to
`target/peers/`, at three sizes each.

    benches/executors.py                                     # on this machine's default device
    benches/executors.py --threads 1 resnet "bert-base 1x16" # those whose names begin so; --list prints them
    benches/executors.py --device cuda --dtype f16 --models DIR
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches/peers"))
import models  # noqa: E402

TOKENS = [{"batch": batch, "sequence": sequence} for batch, sequence in [(1, 16), (1, 128), (8, 128)]]
IMAGES = [{"batch": batch} for batch in (1, 4, 8)]
FEATURES = [{"batch": batch} for batch in (1, 64, 1024)]
SERIES = [{"batch": batch, "time": 64, "sequence": 64} for batch in (1, 8, 32)]
STEPS = [{"batch": batch, "sequence": 1, "past": past, "total": past + 1} for batch, past in [(1, 255), (4, 255), (1, 1023)]]
PROMPTS = [{"batch": 1, "sequence": length, "past": 0, "total": length} for length in (16, 128, 512)]

# What is run at which sizes, by the class of which a geometric mean is printed.
LIST = {
    "encoders": [(name, TOKENS) for name in ["bert-base", "bert-base-tiny", "distilroberta", "albert-base", "t5-small"]]
    + [("whisper-tiny", [{"batch": 1}, {"batch": 2}, {"batch": 4}]), ("mlp", FEATURES)],
    "recurrent": [("lstm", SERIES), ("tagger", SERIES)],
    "vision": [(name, IMAGES) for name in ["vit_b_16", "resnet18", "resnet50", "mobilenet_v3_small", "mobilenet_v3_large",
                                           "convnext_tiny", "detr-resnet50"]] + [("vit_b_16-dynamo", [{"batch": 1}])],
    "decoders": [(name, STEPS + PROMPTS) for name in ["gpt2", "llama-110m", "qwen-6"]],
}


def said(sizes):
    sizes = {name: size for name, size in sizes.items() if name != "total"}
    return " ".join(f"{name}={size}" for name, size in sizes.items())


ROWS = [(kind, name, sizes, f"{name} {said(sizes)}") for kind, list_ in LIST.items() for name, all_ in list_ for sizes in all_]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help="rows, or the beginnings of their names; all if none is given")
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release", help="where graphene-run and graphene-models are")
    parser.add_argument("--models", type=Path, default=ROOT / "target/peers", help="where models are, or are written to")
    parser.add_argument("--device", help="as graphene-run has it")
    parser.add_argument("--dtype", help="as graphene-run has it")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each executor runs in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write every row to this JSON file")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    return parser.parse_args()


def prepared(given, name):
    path = given.models / f"{name}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        models.MODELS[name](path)
    return path


def command_of(given, path, sizes):
    known = subprocess.run([sys.executable, ROOT / "benches/peers/models.py", "--dims", path], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split()
    options = [(option, getattr(given, option)) for option in ("device", "dtype", "threads")]
    options += [("dim", f"{name}={sizes[name]}") for name in known if name in sizes]
    return [given.bin / "graphene-run", path, "--json", "--exec", "fused,library", "--warmup", "100ms", "--duration",
            f"{given.seconds:g}s", *(word for name, value in options if value is not None for word in (f"--{name}", str(value)))]


def measure(command):
    """The medians of both executors in microseconds."""
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines()
        raise RuntimeError(f"exit {ran.returncode}: {lines[-1] if lines else 'no message'}")
    return [executor["time"]["median_ms"] * 1e3 for executor in json.loads(ran.stdout)["executors"]]


def compare(given, name, sizes):
    command = command_of(given, prepared(given, name), sizes)
    times = list(zip(*(measure(command) for _ in range(given.rounds))))
    fused, library = (statistics.median(side) for side in times)
    # How far two rounds of one side are apart, of which one is as likely the faster as the other.
    apart = max((max(side) - min(side)) / min(side) for side in times)
    return {"fused_us": fused, "library_us": library, "ratio": fused / library, "spread": apart}


def main():
    given = arguments()
    rows = [row for row in ROWS if not given.row or any(row[3].startswith(name) for name in given.row)]
    if given.list:
        print("\n".join(row[3] for row in rows))
        return 0
    print(f"{'model and sizes':44} {'fused us':>10} {'library us':>10} {'ratio':>6} {'spread':>6}")
    measured, bad = [], 0
    for kind, name, sizes, text in rows:
        try:
            row = compare(given, name, sizes)
        except Exception as error:  # An exporter may raise anything; the other rows go on.
            bad += 1
            print(f"{text:44} {error}", flush=True)
            continue
        slower = row["ratio"] > 1.02 + row["spread"]
        bad += slower
        measured.append({"class": kind, "row": text, **row})
        print(f"{text:44} {row['fused_us']:>10.1f} {row['library_us']:>10.1f} {row['ratio']:>6.2f} {row['spread']:>6.2f}"
              f"{'  slower' if slower else ''}", flush=True)
    for kind in LIST:
        ratios = [row["ratio"] for row in measured if row["class"] == kind]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            print(f"{kind}: fused is {1 / mean:.2f} times as fast as library over {len(ratios)} rows (geometric mean)")
    if given.results:
        given.results.write_text(json.dumps(measured, indent=1) + "\n")
    return 4 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
