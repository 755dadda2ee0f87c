//! While a process forks, nobody holds the lock of its team, and the child has a team of the same size.

use std::thread;
use std::time::Duration;

use dpmesh_threads::{after_fork, before_fork, map, set_threads, threads};

fn squares(of: usize) -> Vec<usize> {
    map(0..of, |i| i * i)
}

#[test]
fn nobody_looks_for_the_team_while_the_process_forks_and_the_child_has_one() {
    let count = threads() + 1;
    set_threads(count);
    for is_child in [false, true] {
        assert_eq!(squares(100)[99], 99 * 99);
        before_fork();
        before_fork(); // as a module loaded twice does
        let other = thread::spawn(|| squares(100).len());
        thread::sleep(Duration::from_millis(20));
        assert!(!other.is_finished());
        after_fork(is_child);
        after_fork(is_child);
        assert_eq!(other.join().expect("no panic"), 100);
        assert_eq!(squares(100)[99], 99 * 99);
        assert_eq!(threads(), count);
    }
}
