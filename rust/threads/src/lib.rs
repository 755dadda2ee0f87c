#![doc = include_str!("../README.md")]
//!
//! Items are handed out in order; results must not depend on which thread gets which.

#![deny(unsafe_code)]
#![deny(missing_docs)]

mod patience;
mod pause;
mod team;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::available_parallelism;

pub use pause::{on_pause, pause};
use team::{Team, Work};

/// The environment variable with the number of threads, used unless [`set_threads`] is called.
pub const VARIABLE: &str = "DPMESH_NUM_THREADS";

/// A thread takes the next 1 / (`HANDFULS` * threads) of the items left: neighbours stay together, and the last
/// handfuls are small, so that no thread waits long for another.
const HANDFULS: usize = 4;

static GLOBAL: RwLock<Option<Arc<Team>>> = RwLock::new(None);

thread_local! {
    /// The team of [`with_threads`], while the thread is in it.
    static OWN: RefCell<Option<Arc<Team>>> = const { RefCell::new(None) };
    static IS_HELPER: Cell<bool> = const { Cell::new(false) };
    /// From [`before_fork`] to [`after_fork`].
    static FORKING: RefCell<Option<GlobalGuard>> = const { RefCell::new(None) };
}

type GlobalGuard = RwLockWriteGuard<'static, Option<Arc<Team>>>;

/// The number of threads that share work, the calling one included; 1 on a thread that helps another.
///
/// Unless [`set_threads`] was called this is the value of [`VARIABLE`] or, without it, the number of processors that
/// this process may use.
#[must_use]
pub fn threads() -> usize {
    if IS_HELPER.get() { 1 } else { team().threads() }
}

/// Sets the number of threads of the whole process, at least 1, the calling one included. Work under way keeps the
/// threads that it has.
pub fn set_threads(count: usize) {
    *global() = Some(Arc::new(Team::new(count)));
}

/// To be called before a fork, by the thread that forks: until [`after_fork`], others that look for the team wait. A
/// lock that one of them held would stay locked in the child, where that thread does not exist. A second call changes
/// nothing: the hook is registered twice where a module is loaded twice.
pub fn before_fork() {
    FORKING.with_borrow_mut(|forking| {
        forking.get_or_insert_with(global);
    });
}

/// To be called after the fork, in the parent and in the child. The child gets new threads, as the old ones do not
/// exist there.
pub fn after_fork(is_child: bool) {
    if let Some(mut global) = FORKING.take()
        && is_child
    {
        let team = global.take();
        *global = team.map(|team| Arc::new(Team::new(team.threads())));
    }
}

fn global() -> GlobalGuard {
    GLOBAL.write().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work`, with a team of `count` threads, at least 1, for whatever it shares.
pub fn with_threads<R>(count: usize, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Arc<Team>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            OWN.set(self.0.take());
        }
    }
    let _restore = Restore(OWN.replace(Some(Arc::new(Team::new(count)))));
    work()
}

/// Calls `work(scratch, item)` for each item. `scratch` is made once for each thread that takes part.
///
/// # Panics
///
/// When `work` does, after all threads have stopped.
pub fn for_each<I: ExactSizeIterator + Send, S>(
    items: I,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, I::Item) + Sync,
) {
    let most = items.len().saturating_sub(1);
    let hands = HANDFULS * threads();
    let items = Mutex::new(items);
    let take = |handful: &mut Vec<I::Item>| {
        let mut items = items.lock().unwrap_or_else(PoisonError::into_inner);
        let size = (items.len() / hands).max(1);
        handful.extend(items.by_ref().take(size));
    };
    share(most, &|| {
        let mut handful = Vec::new();
        take(&mut handful);
        if handful.is_empty() {
            return;
        }
        let mut scratch = scratch();
        while !handful.is_empty() {
            for item in handful.drain(..) {
                work(&mut scratch, item);
                pause();
            }
            take(&mut handful);
        }
    });
}

/// `value(item)` for each item, in order.
///
/// # Panics
///
/// When `value` does.
pub fn map<I: ExactSizeIterator + Send, R: Send>(
    items: I,
    value: impl Fn(I::Item) -> R + Sync,
) -> Vec<R> {
    let mut values: Vec<Option<R>> = (0..items.len()).map(|_| None).collect();
    let pairs = values.iter_mut().zip(items);
    for_each(pairs, || (), |(), (place, item)| *place = Some(value(item)));
    values.into_iter().flatten().collect()
}

fn share(most: usize, work: &Work<'_>) {
    if IS_HELPER.get() {
        work();
    } else {
        team().share(most, work);
    }
}

fn team() -> Arc<Team> {
    if let Some(own) = OWN.with_borrow(Clone::clone) {
        return own;
    }
    if let Some(team) = &*GLOBAL.read().unwrap_or_else(PoisonError::into_inner) {
        return Arc::clone(team);
    }
    Arc::clone(global().get_or_insert_with(|| Arc::new(Team::new(default_threads()))))
}

fn default_threads() -> usize {
    let asked = std::env::var(VARIABLE)
        .ok()
        .and_then(|count| count.parse().ok());
    asked.unwrap_or_else(|| available_parallelism().map_or(1, usize::from))
}

fn become_helper() {
    IS_HELPER.set(true);
}
