#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::notify::run(data));
