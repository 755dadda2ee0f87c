//! The threads of a team, and how a piece of work begins and ends among them.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use crate::patience::Patience;

/// The most threads a team has.
pub(crate) const MOST_THREADS: usize = TURN as usize;

/// What opening or closing work adds to [`Shared::state`]. `state / TURN` counts both, so it is odd while work is open;
/// `state % TURN` is the number of helpers inside.
const TURN: u64 = 1 << 16;

pub(crate) type Work<'a> = dyn Fn() + Sync + 'a;

/// The caller's thread and its helpers.
pub(crate) struct Team {
    threads: usize,
    shared: Arc<Shared>,
    /// Whether a caller's work is under way.
    taken: AtomicBool,
}

/// What helpers see of their team.
struct Shared {
    state: AtomicU64,
    /// Present while a helper may be inside.
    job: Mutex<Option<Job>>,
    /// The first panic of a helper.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    helpers: OnceLock<Vec<Thread>>,
    asleep: Vec<AtomicBool>,
    dismissed: AtomicBool,
    /// Whether the caller unwinds, so that its work is of no more use.
    stopped: AtomicBool,
}

thread_local! {
    /// The team that this thread helps.
    static HELPED: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Whether this thread is a helper. One whose caller has stopped stops here, too.
pub(crate) fn helps() -> bool {
    HELPED.with_borrow(|helped| {
        let stopped = |team: &Arc<Shared>| team.stopped.load(SeqCst);
        if helped.as_ref().is_some_and(stopped) {
            resume_unwind(Box::new("the caller has stopped"));
        }
        helped.is_some()
    })
}

#[derive(Clone)]
struct Job {
    work: &'static Work<'static>,
    caller: Thread,
    /// The number of helpers that there is work for.
    most: usize,
}

impl Team {
    /// A team of `threads` threads, the caller's included. The others start with the first work.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, MOST_THREADS);
        Self {
            threads,
            shared: Arc::new(Shared::new(threads - 1)),
            taken: AtomicBool::new(false),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Does the work on the calling thread and at the same time on helpers, of which up to `most` are woken for it;
    /// returns when all that began it are done. If the team is already at work, the caller does it alone.
    ///
    /// # Panics
    ///
    /// When the work does, on any thread.
    pub(crate) fn share(&self, most: usize, work: &Work<'_>) {
        if most == 0 || self.threads == 1 || self.taken.swap(true, SeqCst) {
            return work();
        }
        let open = Open::new(self, most, work);
        self.shared.helpers.get_or_init(|| self.shared.hire());
        self.shared.wake_one();
        work();
        drop(open);
        let panic = lock(&self.shared.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.dismissed.store(true, SeqCst);
        while self.shared.wake_one() {}
    }
}

/// Work that helpers may join, until this is dropped.
struct Open<'t>(&'t Team);

impl<'t> Open<'t> {
    fn new(team: &'t Team, most: usize, work: &Work<'_>) -> Self {
        let shared = &team.shared;
        let work = outlive(work);
        let caller = thread::current();
        *lock(&shared.job) = Some(Job { work, caller, most });
        *lock(&shared.panic) = None;
        shared.stopped.store(false, SeqCst);
        shared.state.fetch_add(TURN, SeqCst);
        Self(team)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let shared = &self.0.shared;
        shared.stopped.store(thread::panicking(), SeqCst);
        shared.state.fetch_add(TURN, SeqCst);
        let mut patience = Patience::new();
        while !shared.state.load(SeqCst).is_multiple_of(TURN) {
            if !patience.wait() {
                thread::park();
            }
        }
        *lock(&shared.job) = None;
        self.0.taken.store(false, SeqCst);
    }
}

/// The same work without its lifetime, for the helpers.
#[allow(unsafe_code)]
fn outlive(work: &Work<'_>) -> &'static Work<'static> {
    // SAFETY: only `Open::new` calls this, and helpers use the work only while they are inside. The work outlives
    // `Open`: `Team::share` drops it before it returns or unwinds. That drop lets no more helpers in, waits until none
    // is inside, and removes the work.
    unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) }
}

impl Shared {
    fn new(helpers: usize) -> Self {
        Self {
            state: AtomicU64::new(0),
            job: Mutex::new(None),
            panic: Mutex::new(None),
            helpers: OnceLock::new(),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            dismissed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    /// Starts the helpers, as many as the system allows.
    fn hire(self: &Arc<Self>) -> Vec<Thread> {
        let start = |index| {
            let shared = Arc::clone(self);
            let builder = thread::Builder::new().name(format!("dpmesh-{}", index + 1));
            let work = move || {
                HELPED.set(Some(Arc::clone(&shared)));
                shared.help(index);
            };
            builder.spawn(work).ok()
        };
        let helpers = (0..self.asleep.len()).map_while(start);
        helpers.map(|helper| helper.thread().clone()).collect()
    }

    /// The life of a helper.
    fn help(&self, index: usize) {
        crate::become_helper();
        let mut turn = 0;
        while self.next_turn(&mut turn, index) {
            if let Some((job, inside)) = self.join(turn) {
                if inside < job.most {
                    self.wake_one();
                }
                let done = catch_unwind(AssertUnwindSafe(job.work));
                if let Err(panic) = done {
                    lock(&self.panic).get_or_insert(panic);
                }
                self.leave(&job.caller);
            }
        }
    }

    /// Waits for an open turn other than `turn` and stores it there; false once the team is dismissed.
    fn next_turn(&self, turn: &mut u64, index: usize) -> bool {
        let asleep = &self.asleep[index];
        let mut patience = Patience::new();
        loop {
            let now = self.state.load(SeqCst) / TURN;
            if self.dismissed.load(SeqCst) {
                return false;
            }
            if now % 2 == 1 && now != *turn {
                asleep.store(false, SeqCst);
                *turn = now;
                return true;
            }
            // A turn opened after this thread declared itself asleep wakes it; one opened before is seen in the next
            // pass.
            if !patience.wait() && asleep.swap(true, SeqCst) {
                thread::park();
                patience = Patience::new();
            }
        }
    }

    /// Enters if that turn is still open: the job, and how many helpers are now inside.
    fn join(&self, turn: u64) -> Option<(Job, usize)> {
        let enter = |state| (state / TURN == turn).then_some(state + 1);
        let before = self.state.fetch_update(SeqCst, SeqCst, enter).ok()?;
        let job = lock(&self.job).clone()?;
        Some((job, (before % TURN) as usize + 1))
    }

    /// Wakes a sleeping helper, if there is one. Waking takes some ten microseconds, so the caller wakes one helper and
    /// each helper the next.
    fn wake_one(&self) -> bool {
        let helpers = self.helpers.get().into_iter().flatten();
        let sleeper = (self.asleep.iter().zip(helpers))
            .find(|(asleep, _)| asleep.load(SeqCst) && asleep.swap(false, SeqCst));
        sleeper.inspect(|(_, helper)| helper.unpark()).is_some()
    }

    fn leave(&self, caller: &Thread) {
        let state = self.state.fetch_sub(1, SeqCst) - 1;
        if state.is_multiple_of(2 * TURN) {
            caller.unpark();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
