#!/usr/bin/env python3
"""Drives a server by real clients: tritonclient, kserve, openai, huggingface_hub and perf_analyzer.

    cargo build --release -p graphene-serve
    python3 runtime/serve/clients/run.py [--server target/release/graphene-serve] [--folder target/clients]

The clients are installed into the folder, the server runs a small model on the loopback, and a table of all cases is printed.
What cannot be installed is skipped and counted. The exit status is 1 if a case failed.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODEL = "zoo:bert-base-tiny"

# What is installed for each client.
PACKAGES = {
    "tritonclient": ["tritonclient[http,grpc]==2.73.0"],
    "kserve": ["kserve==0.21.0"],
    "openai": ["openai==3.54.0", "numpy"],
    "huggingface_hub": ["huggingface_hub==2.4.0", "numpy"],
}

# The last wheel whose perf_analyzer runs with Debian 12's C library, and the shared libraries that it misses.
PERF_ANALYZER, CUDA_RUNTIME, BASE64 = "2.50.0", "nvidia-cuda-runtime-cu12==12.9.79", "libb64-0d"
PERF_CASES = [
    ("HTTP, 2 at a time", ["-u", "{http}"]),
    ("gRPC, 2 at a time", ["-i", "grpc", "-u", "{grpc}"]),
    ("gRPC by streams", ["-i", "grpc", "--streaming", "-u", "{grpc}"]),
]


def call(*command, **options):
    """Runs a command; where it fails, the error is the last line that it wrote."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return done.stdout


def python_of(folder, package):
    """The Python of an environment that has a package."""
    python = folder / package / "bin" / "python"
    if not python.exists():
        call(sys.executable, "-m", "venv", folder / package)
    call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[package])
    return python


def perf_analyzer_of(folder):
    """The binary of perf_analyzer, and an environment in which it finds its libraries."""
    folder = folder / "perf_analyzer"
    binary = folder / f"tritonclient-{PERF_ANALYZER}.data/data/bin/perf_analyzer"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if not binary.exists():
        wheel = ["--no-deps", "--only-binary", ":all:", "--platform", "manylinux1_x86_64"]
        call(*pip, "download", "--quiet", *wheel, "--dest", folder, f"tritonclient=={PERF_ANALYZER}")
        with zipfile.ZipFile(next(folder.glob("tritonclient-*.whl"))) as wheel:
            wheel.extractall(folder)
        binary.chmod(0o755)
        call(*pip, "install", "--quiet", "--target", folder / "cuda", CUDA_RUNTIME)
        call("apt-get", "download", BASE64, cwd=folder)
        call("dpkg", "-x", next(folder.glob("libb64*.deb")), folder / "b64")
    libraries = [*folder.glob("b64/usr/lib/*"), *folder.glob("cuda/nvidia/*/lib")]
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}
    call("ldd", binary)
    return binary, environment


class Server:
    """A server on free ports of the loopback, killed at the end."""

    def __init__(self, binary):
        ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--device", "cpu", "--log", "warn"]
        self.process = subprocess.Popen([binary, MODEL, *ports], stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        lines = [self.process.stdout.readline().strip() for _ in range(2)]
        if not lines[1]:
            sys.exit("the server did not start")
        return [line.split("://")[1] for line in lines]

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def package_cases(folder, package, http, grpc):
    try:
        python = python_of(folder, package)
    except Exception as error:
        return [(package, "", "all", f"skipped: {error}")]
    lines = call(python, HERE / "cases.py", http, grpc, package, timeout=300).splitlines()
    return [tuple(json.loads(line)) for line in lines]


def perf_cases(folder, http, grpc):
    name = "perf_analyzer"
    try:
        binary, environment = perf_analyzer_of(folder)
    except Exception as error:
        return [(name, PERF_ANALYZER, "all", f"skipped: {error}")]
    shapes = [f"--shape={port}:16" for port in ("input_ids", "attention_mask", "token_type_ids")]
    usual = ["-m", MODEL[4:], *shapes, "--input-data=zero", "--concurrency-range=2", "-p", "1000", "-r", "3", "-s", "50"]
    rows = []
    for what, options in PERF_CASES:
        options = [option.format(http=http, grpc=grpc) for option in options]
        try:
            report = call(binary, *usual, *options, env=environment, timeout=120)
            rate = float(re.search(r"Throughput: ([\d.]+) infer/sec", report)[1])
            sent = int(re.search(r"Request count: (\d+)", report)[1])
            counted = int(re.search(r"Successful request count: (\d+)", report)[1])
            # The server's window begins and ends a little before or after the client's.
            right = rate > 0 and abs(sent - counted) <= max(4, sent // 100)
            rows.append((name, PERF_ANALYZER, what, "ok" if right else f"FAILED: sent {sent}, counted {counted}"))
        except Exception as error:
            rows.append((name, PERF_ANALYZER, what, f"FAILED: {error}"))
    return rows


def print_table(rows):
    rows = [("client", "version", "case", "result"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=pathlib.Path, default=ROOT / "target/release/graphene-serve")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "target/clients")
    args = parser.parse_args()
    if not args.server.exists():
        sys.exit(f"{args.server} is missing: cargo build --release -p graphene-serve")
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with Server(args.server) as (http, grpc):
        for package in PACKAGES:
            print(f"{package} ...", file=sys.stderr)
            rows += package_cases(args.folder, package, http, grpc)
        print("perf_analyzer ...", file=sys.stderr)
        rows += perf_cases(args.folder, http, grpc)
    print_table(rows)
    failed = sum(row[3].startswith("FAILED") for row in rows)
    skipped = sum(row[3].startswith("skipped") for row in rows)
    print(f"\n{len(rows) - failed - skipped} right, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
