//! A hook stops long work on all threads of a team.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use dpmesh_threads::{for_each, map, on_pause, pause, with_threads};

static STOP: AtomicBool = AtomicBool::new(false);

#[test]
fn the_hook_stops_all_threads_within_their_items_and_the_team_works_on() {
    on_pause(|| {
        if STOP.swap(false, SeqCst) {
            resume_unwind(Box::new("stop"));
        }
    });
    for threads in [1, 2, 4] {
        with_threads(threads, || {
            let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let work = || {
                let endless = |(): &mut (), _| {
                    if begun.fetch_add(1, SeqCst) + 1 == threads {
                        STOP.store(true, SeqCst);
                    }
                    for _ in 0..100_000 {
                        thread::sleep(Duration::from_millis(1));
                        pause();
                    }
                    done.fetch_add(1, SeqCst);
                };
                for_each(0..threads, || (), endless);
            };
            let stopped = catch_unwind(AssertUnwindSafe(work)).expect_err("a stop");
            assert_eq!(stopped.downcast_ref::<&str>(), Some(&"stop"));
            assert_eq!((begun.into_inner(), done.into_inner()), (threads, 0));
            assert_eq!(map(0..100, |i| i * i)[99], 99 * 99);
        });
    }
}
