#!/bin/sh
# Fuzzes a target for some seconds, on one core and with the stable toolchain:
#
#     frontend/fuzz/run.sh TARGET SECONDS [libFuzzer's options]
#
# TARGET is `import` (bytes of a model), `import_structured` (the same, by mutations that leave a model a model) or
# `text` (a graph in text form). Instrumentation comes from LLVM's pass alone, so no nightly compiler and no
# sanitizer is needed; libFuzzer itself is compiled from the C++ in the crate `libfuzzer-sys`.
#
# It starts from the inputs that stand in frontend/tests/data/fuzz and keeps new ones in frontend/fuzz/corpus/TARGET;
# an input that panics, takes more than ten seconds or a gibibyte is left in frontend/fuzz/artifacts/TARGET, and the
# exit code is not zero. `-minimize_crash=1 -runs=100000 FILE` as options makes such an input smaller. Inputs worth
# keeping go to frontend/tests/data/fuzz, where a plain test runs them all.
set -eu
target=$1
seconds=$2
shift 2
cd "$(dirname "$0")"
flags="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags="$flags -Cllvm-args=-sanitizer-coverage-$option"
done
# A target named explicitly keeps the flags away from build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="$flags" cargo build --quiet --release --target "$host" --bin "$target"
mkdir -p "corpus/$target" "artifacts/$target"

exec "target/$host/release/$target" -max_total_time="$seconds" -rss_limit_mb=1024 -malloc_limit_mb=1024 \
    -timeout=10 -report_slow_units=5 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="artifacts/$target/" "$@" "corpus/$target"
