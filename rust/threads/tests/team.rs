//! What a team promises: every item once, in order for `map`, panics passed on, no deadlock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dpmesh_threads::{for_each, map, set_threads, threads, with_threads};

fn squares(of: usize) -> Vec<usize> {
    map(0..of, |i| i * i)
}

#[test]
fn every_item_is_worked_on_once_and_stays_in_its_place() {
    for threads in [1, 2, 3, 4, 16, 100] {
        with_threads(threads, || {
            for items in [0, 1, 2, 3, 1000] {
                let want: Vec<_> = (0..items).map(|i| i * i).collect();
                assert_eq!(squares(items), want, "{threads} threads, {items} items");
            }
        });
    }
}

#[test]
fn others_help() {
    with_threads(4, || {
        let met = Barrier::new(4);
        // Each item waits until four threads are here.
        for_each(
            0..4,
            || (),
            |(), _| {
                met.wait();
            },
        );
    });
}

#[test]
fn scratch_is_made_once_a_thread() {
    let made = AtomicUsize::new(0);
    with_threads(3, || {
        let scratch = || made.fetch_add(1, Ordering::Relaxed);
        for_each(0..1000, scratch, |_, _| ());
    });
    assert!((1..=3).contains(&made.into_inner()));
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_works_on() {
    with_threads(4, || {
        for failing in [0, 1, 500, 999] {
            let work = || for_each(0..1000, || (), |(), i| assert_ne!(i, failing, "item {i}"));
            let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("a panic");
            let message = panic.downcast_ref::<String>().expect("a message");
            assert!(message.contains(&format!("item {failing}")), "{message}");
            assert_eq!(squares(100)[99], 99 * 99);
        }
    });
}

#[test]
fn a_caller_sleeps_until_its_slowest_helper_is_done_and_takes_its_panic() {
    with_threads(2, || {
        let (met, caller) = (Barrier::new(2), thread::current().id());
        let work = |(): &mut (), _| {
            met.wait();
            if thread::current().id() != caller {
                thread::sleep(Duration::from_millis(20));
                panic!("of a helper");
            }
        };
        let panic = catch_unwind(AssertUnwindSafe(|| for_each(0..2, || (), work)));
        let panic = panic.expect_err("a panic");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of a helper"));
        assert_eq!(squares(100)[99], 99 * 99);
    });
}

#[test]
fn work_within_work_stays_on_its_thread() {
    with_threads(4, || {
        let met = Barrier::new(4);
        let sums = map(0..4, |i| {
            met.wait();
            squares(i + 1).into_iter().sum::<usize>()
        });
        assert_eq!(sums, [0, 1, 5, 14]);
    });
}

#[test]
fn many_callers_share_one_team() {
    set_threads(3);
    assert_eq!(threads(), 3);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for items in 0..500 {
                    assert_eq!(squares(items).len(), items);
                }
            });
        }
        scope.spawn(|| (1..50).for_each(|threads| set_threads(threads % 5 + 1)));
    });
}

#[test]
fn helpers_are_found_asleep_and_awake() {
    with_threads(4, || {
        for pause in [0, 10, 40, 60, 200, 1000] {
            for _ in 0..50 {
                thread::sleep(Duration::from_micros(pause));
                assert_eq!(squares(20)[19], 19 * 19);
            }
        }
    });
}

#[test]
fn a_team_of_its_own_ends_with_the_work() {
    with_threads(7, || {
        assert_eq!(threads(), 7);
        with_threads(2, || assert_eq!(threads(), 2));
        assert_eq!(threads(), 7);
        assert!(
            map(0..3, |_| threads())
                .into_iter()
                .all(|n| n == 7 || n == 1)
        );
    });
    let _ = catch_unwind(|| with_threads(9, || panic!("inside")));
    assert_ne!(threads(), 9);
}
