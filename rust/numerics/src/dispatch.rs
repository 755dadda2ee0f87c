//! Compiling work for several instruction sets, and running it with one of them.

use pulp::NullaryFnOnce;

pub use pulp::Arch;

/// The result of `work`, compiled for the vectors of `arch`. The functions that it calls must be `#[inline(always)]`:
/// the compiler compiles what it does not inline for the oldest processor.
#[inline]
pub fn dispatch_on<R>(arch: Arch, work: impl FnMut() -> R) -> R {
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

/// The instruction sets of this processor that work can be compiled for, the portable one first: for tests.
#[must_use]
pub fn instruction_sets() -> Vec<Arch> {
    #[allow(unused_mut)]
    let mut sets = vec![Arch::Scalar, Arch::new()];
    #[cfg(target_arch = "x86_64")]
    sets.extend(pulp::x86::V3::try_new().map(Arch::V3));
    sets
}
