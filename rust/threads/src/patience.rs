//! Waiting for something that may come within microseconds.

use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// How long to look before sleeping: longer than a Python interpreter takes between two kernels on megabytes of data,
/// which evict it from the cache.
const LOOK: Duration = Duration::from_micros(200);

/// How long to spin before yielding to other programs.
const HURRY: Duration = Duration::from_micros(5);

pub(crate) struct Patience {
    since: Option<Instant>,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { since: None }
    }

    /// Waits a moment; false once patience has run out.
    pub(crate) fn wait(&mut self) -> bool {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited < HURRY {
            (0..16).for_each(|_| spin_loop());
        } else if waited < LOOK {
            yield_now();
        }
        waited < LOOK
    }
}
