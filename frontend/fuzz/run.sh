#!/bin/sh
# Fuzzes a target for some seconds, on one core and with the stable toolchain:
#
#     frontend/fuzz/run.sh TARGET SECONDS [libFuzzer's options]
#
# TARGET is `import` (bytes of a model), `import_structured` (the same, by mutations that leave a model a model) or
# `text` (a graph in text form). Instrumentation comes from LLVM's pass alone, so no nightly compiler and no
# sanitizer is needed; libFuzzer itself is compiled from the C++ in the crate `libfuzzer-sys`.
#
# The models of ONNX's node suite, or the golden texts, are where it starts from, together with the inputs that broke
# something once (frontend/tests/data/fuzz). New inputs are kept in frontend/fuzz/corpus/TARGET. An input that panics,
# takes more than ten seconds or a gibibyte is left in frontend/fuzz/artifacts/TARGET, and the exit code is not
# zero. With the options `-minimize_crash=1 -runs=100000 FILE` it is made smaller; put it in frontend/tests/data/fuzz,
# where a plain test runs all of them. The ten seconds are those of the clock on the wall: where other work keeps the
# core busy, give `-timeout=100` and look at what `slow-unit-*` takes by itself.
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
seeds=corpus/seeds-$target
if [ ! -d "$seeds" ]; then
    mkdir -p "$seeds"
    case $target in
        text) cp ../src/text/tests/*.txt "$seeds" ;;
        # Cases lie in folders of their own: take each one's model, named after it.
        *) tar --zstd -xf ../tests/data/onnx-node-suite.tar.zst -C "$seeds" --wildcards '*/model.onnx' \
            --transform 's|.*/\([^/]*\)/model.onnx|\1.onnx|' ;;
    esac
fi
case $target in
    text) regressions=../tests/data/fuzz/text ;;
    *) regressions=../tests/data/fuzz/import ;;
esac

exec "target/$host/release/$target" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10 -report_slow_units=5 \
    -max_len=65536 -print_final_stats=1 -artifact_prefix="artifacts/$target/" "$@" \
    "corpus/$target" "$seeds" "$regressions"
