//! Points where long work can be stopped.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::team;

/// Time between two calls of the hook.
const EVERY: Duration = Duration::from_millis(100);

/// The clock is read at each so many pauses: reading it takes some 25 nanoseconds.
const PAUSES: u32 = 8;

static HOOK: OnceLock<fn()> = OnceLock::new();

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(PAUSES) };
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Sets what [`pause`] calls, once for the whole process; later calls change nothing. The hook stops the work by a
/// panic, such as [`std::panic::resume_unwind`], which reaches whoever began the work once all threads have stopped.
pub fn on_pause(hook: fn()) {
    let _ = HOOK.set(hook);
}

/// To be called often in work that may take long, such as once in a microsecond: [`for_each`](crate::for_each) and
/// [`map`](crate::map) do so after each item. On the thread that began the work it calls the hook of [`on_pause`] some
/// ten times a second; on a helper it stops the work if that thread has.
#[inline]
pub fn pause() {
    let left = LEFT.get();
    if left > 1 {
        LEFT.set(left - 1);
    } else {
        LEFT.set(PAUSES);
        look();
    }
}

#[cold]
fn look() {
    if !team::helps()
        && let Some(hook) = HOOK.get()
    {
        let now = Instant::now();
        let last = LAST.get();
        if last.is_none_or(|last| now - last >= EVERY) {
            LAST.set(Some(now));
            hook();
        }
    }
}
