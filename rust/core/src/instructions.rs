//! Compiling a kernel for several instruction sets, and running the one for this processor.

use dpmesh_numerics::dispatch::Arch;
pub(crate) use dpmesh_numerics::dispatch::dispatch_on;
#[cfg(test)]
pub(crate) use dpmesh_numerics::dispatch::instruction_sets;

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
