use super::*;

#[test]
fn a_thread_counts_before_its_first_step_and_until_its_last() {
    let threads = Arc::new(Threads::default());
    let mut begun = Threads::begin(&threads);
    assert_eq!((threads.count(), threads.entered().len()), (1, 0));
    let ended = thread::spawn({
        let threads = Arc::clone(&threads);
        move || {
            begun.enter();
            assert_eq!((threads.count(), threads.entered().len()), (1, 1));
        }
    });
    ended.join().unwrap();
    assert_eq!((threads.count(), threads.entered().len()), (0, 0));
    // One that could not be started gives its place back.
    drop(Threads::begin(&threads));
    assert_eq!(threads.count(), 0);
}
