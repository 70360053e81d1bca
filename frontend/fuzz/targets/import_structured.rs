//! Models that stay models: most mutations change nodes, attributes, types and bodies rather than bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::import(bytes));

libfuzzer_sys::fuzz_mutator!(|bytes: &mut [u8], size: usize, most: usize, seed: u32| {
    match fuzz::mutate(&bytes[..size], u64::from(seed)) {
        Some(changed) if changed.len() <= most.min(bytes.len()) => {
            bytes[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        _ => libfuzzer_sys::fuzzer_mutate(bytes, size, most),
    }
});
