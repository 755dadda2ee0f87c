//! Waiting for what may come within microseconds.

use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// How long to look before sleeping: longer than an interpreter takes between two kernels that work on megabytes, which
/// push it out of the cache.
const LOOK: Duration = Duration::from_micros(200);

/// How long to do so without giving way to other programs.
const HURRY: Duration = Duration::from_micros(5);

pub(crate) struct Patience {
    since: Option<Instant>,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { since: None }
    }

    /// Passes a moment; false once there is no more patience.
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
