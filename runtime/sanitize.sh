#!/bin/sh
# Runs the tests of the runtime that have to do with raw memory under AddressSanitizer, with the stable toolchain on
# Linux:
#
#     runtime/sanitize.sh
#
# These are the library's own tests (threads, slices that they take apart, kernels), those of the embedding API (engines,
# contexts, pools, faults), and the C interface as programs in C and C++ use it, which `cc` instruments as well. What is
# leaked when a program ends counts as an error too. Debug assertions are on, so that the standard library checks what its
# unsafe functions require. Nothing is suppressed.
#
# Rust's standard library itself is compiled without instrumentation: of what its own code does, only calls of the
# allocator, memcpy and the like are checked. GPUs are not used. Data races are not found by this but by loom
# (runtime/src/threads/model.rs): ThreadSanitizer does not see the locks of a standard library without instrumentation,
# and reports what they guard.
#
# From nothing this takes about nine minutes on two cores, most of it compilation.
set -eu
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
# What the stable compiler takes otherwise only if it is a nightly one.
export RUSTC_BOOTSTRAP=1
# A target named explicitly keeps the flags away from build scripts.
check() { cargo test --target "$host" --target-dir target/sanitizer "$@"; }

export RUSTFLAGS="-Zsanitizer=address"
export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1"
check -p graphene-runtime --no-default-features --features cpu --lib --test embed
# Valgrind and the sanitizer cannot both be in charge of memory.
CFLAGS="-fsanitize=address -fno-omit-frame-pointer" check -p graphene-capi --test c -- --skip valgrind
