//! Bytes as they come.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::text(bytes));
