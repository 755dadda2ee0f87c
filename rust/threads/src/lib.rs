#![doc = include_str!("../README.md")]
//!
//! Items are handed out in their order; results must not depend on which thread has which.

#![deny(unsafe_code)]
#![deny(missing_docs)]

mod patience;
mod team;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::available_parallelism;

use team::{Team, Work};

/// The environment variable that says how many threads to use, where nobody calls [`set_threads`].
pub const VARIABLE: &str = "DPMESH_NUM_THREADS";

/// Into so many handfuls for each thread the items that are left are cut: neighbours stay together, and the last
/// handfuls are small, so that nobody waits long.
const HANDFULS: usize = 4;

static EVERYBODYS: RwLock<Option<Arc<Team>>> = RwLock::new(None);

thread_local! {
    /// The team of [`with_threads`], while the thread is in it.
    static OWN: RefCell<Option<Arc<Team>>> = const { RefCell::new(None) };
    static IS_HELPER: Cell<bool> = const { Cell::new(false) };
    /// From [`before_fork`] to [`after_fork`].
    static FORKING: RefCell<Option<Everybodys>> = const { RefCell::new(None) };
}

type Everybodys = RwLockWriteGuard<'static, Option<Arc<Team>>>;

/// Threads that work is shared among, the calling one included; 1 for a thread that helps another.
///
/// Unless [`set_threads`] was called these are [`VARIABLE`]'s or, without it, as many as there are processors for this
/// process.
#[must_use]
pub fn threads() -> usize {
    if IS_HELPER.get() { 1 } else { team().threads() }
}

/// Sets the number of threads of the whole process, at least 1, the calling one included. Work under way goes on as it
/// began.
pub fn set_threads(count: usize) {
    *everybodys() = Some(Arc::new(Team::new(count)));
}

/// To be called before this process is forked, by the thread that does: others wait until [`after_fork`] with looking for
/// their team. A lock that one of them held would stay closed in the child, where it does not live on. Called twice it
/// is as called once, as it is where a module that asks for it is loaded again.
pub fn before_fork() {
    FORKING.with_borrow_mut(|forking| {
        forking.get_or_insert_with(everybodys);
    });
}

/// To be called after the fork in the parent, and in the child, whose team gets new threads: the old ones do not live on.
pub fn after_fork(is_child: bool) {
    if let Some(mut everybodys) = FORKING.take()
        && is_child
    {
        let team = everybodys.take();
        *everybodys = team.map(|team| Arc::new(Team::new(team.threads())));
    }
}

fn everybodys() -> Everybodys {
    EVERYBODYS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work`; what it shares is shared among so many threads, at least 1, of a team of its own.
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
            handful.drain(..).for_each(|item| work(&mut scratch, item));
            take(&mut handful);
        }
    });
}

/// `value(item)` for each item, in their order.
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
    if let Some(team) = &*EVERYBODYS.read().unwrap_or_else(PoisonError::into_inner) {
        return Arc::clone(team);
    }
    Arc::clone(everybodys().get_or_insert_with(|| Arc::new(Team::new(default_threads()))))
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
