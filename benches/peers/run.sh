#!/bin/sh
# Compares graphene-run with onnxruntime on the CPU for bert-base: builds what is needed, writes the
# model to a temporary directory, runs both in turn, prints one table. Options go to compare.py.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
zoo=${ZOO:-bert-base}

if ! command -v "$python" >/dev/null 2>&1; then
    echo "run.sh: $python was not found; set PYTHON to a Python 3.9 or newer" >&2
    exit 6
fi
missing=
for package in numpy onnxruntime; do
    "$python" -c "import $package" 2>/dev/null || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "run.sh: $python lacks$missing; install with: $python -m pip install$missing" >&2
    exit 6
fi

if [ -z "${GRAPHENE_RUN:-}" ] || [ -z "${GRAPHENE_MODELS:-}" ]; then
    (cd "$root" && cargo build --release -p graphene-run -p graphene-models) >&2
fi
target=${CARGO_TARGET_DIR:-$root/target}
run=${GRAPHENE_RUN:-$target/release/graphene-run}
models=${GRAPHENE_MODELS:-$target/release/graphene-models}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$models" "$zoo" -o "$scratch/model.onnx" >&2
# No exec: the directory is removed when this shell ends.
"$python" "$here/compare.py" --graphene-run "$run" --model "$scratch/model.onnx" "$@"
