#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::decoder::run(data));
