//! Compiling a kernel for several instruction sets, and running the one for this processor.

use pulp::{Arch, NullaryFnOnce};

/// The value of the expression, compiled for the widest vector instructions of this processor.
///
/// The functions that it calls must be `#[inline(always)]`: the compiler compiles what it does not inline for the
/// oldest processor. Nothing may depend on the vector width, so that the bits are the same everywhere.
macro_rules! vectorized {
    ($work:expr) => {
        $crate::instructions::dispatch(
            #[inline(always)]
            || $work,
        )
    };
}
pub(crate) use vectorized;

/// What [`vectorized!`] expands to.
#[inline]
pub(crate) fn dispatch<R>(work: impl FnMut() -> R) -> R {
    dispatch_on(instruction_set(), work)
}

/// The widest vector instructions of this processor.
#[cfg(not(test))]
#[inline]
pub(crate) fn instruction_set() -> Arch {
    Arch::new()
}

#[cfg(test)]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Arch>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(crate) fn instruction_set() -> Arch {
    CHOSEN.get().unwrap_or_default()
}

/// The instruction set that [`with_each_instruction_set`] has chosen on this thread, for those that help it.
#[cfg(test)]
pub(crate) fn chosen() -> Option<Arch> {
    CHOSEN.get()
}

#[cfg(test)]
pub(crate) fn choose(set: Option<Arch>) {
    CHOSEN.set(set);
}

/// The result of `work` with each of the [`instruction_sets`], the portable one first.
#[cfg(test)]
pub(crate) fn with_each_instruction_set<R>(work: impl Fn() -> R) -> Vec<R> {
    let with = |set| {
        CHOSEN.set(Some(set));
        let result = work();
        CHOSEN.set(None);
        result
    };
    instruction_sets().into_iter().map(with).collect()
}

#[inline]
pub(crate) fn dispatch_on<R>(arch: Arch, work: impl FnMut() -> R) -> R {
    // A closure called through `FnOnce` would run behind a shim that carries no `#[inline(always)]`.
    struct Inlined<F>(F);
    impl<R, F: FnMut() -> R> NullaryFnOnce for Inlined<F> {
        type Output = R;
        #[inline(always)]
        fn call(mut self) -> R {
            (self.0)()
        }
    }
    arch.dispatch(Inlined(work))
}

/// The instruction sets that [`vectorized!`] can choose on this processor, the portable one first.
#[cfg(test)]
pub(crate) fn instruction_sets() -> Vec<Arch> {
    #[allow(unused_mut)]
    let mut sets = vec![Arch::Scalar, Arch::new()];
    #[cfg(target_arch = "x86_64")]
    sets.extend(pulp::x86::V3::try_new().map(Arch::V3));
    sets
}
