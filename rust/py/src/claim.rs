//! Which memory the arguments of a call use: what a kernel writes through one, it uses through no other.
//!
//! The borrows of the `numpy` crate ensure this, across threads, for arrays with the same base, such as views of each
//! other. But arrays with different bases can share memory, as those of `as_strided` and `frombuffer` do: these are
//! caught here, where they are arguments of one call.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};

use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

thread_local! {
    /// Uses by the call that this thread is in; `None` for one that ended before a later one.
    static USES: RefCell<Vec<Option<Use>>> = const { RefCell::new(Vec::new()) };
}

/// A kernel's use of some bytes.
struct Use {
    addresses: Range<usize>,
    writes: bool,
}

impl Use {
    #[inline]
    fn conflicts(&self, other: &Use) -> bool {
        let (own, others) = (&self.addresses, &other.addresses);
        let meet = own.start.max(others.start) < own.end.min(others.end);
        meet && (self.writes || other.writes)
    }
}

/// The right to use some memory until this is dropped: an index into `USES`.
struct Claim(usize);

impl Claim {
    #[inline]
    fn new(claimed: Use) -> Option<Claim> {
        USES.with_borrow_mut(|uses| {
            if uses.iter().flatten().any(|other| claimed.conflicts(other)) {
                return None;
            }
            uses.push(Some(claimed));
            Some(Claim(uses.len() - 1))
        })
    }
}

impl Drop for Claim {
    #[inline]
    fn drop(&mut self) {
        USES.with_borrow_mut(|uses| {
            uses[self.0] = None;
            while uses.pop_if(|last| last.is_none()).is_some() {}
        });
    }
}

/// A borrowed array whose memory is claimed.
pub struct Claimed<A> {
    array: A,
    _claim: Claim,
}

impl<A> Claimed<A> {
    /// Claims the memory of a C-contiguous array for its borrow, `borrowed`; `None` if another argument uses that
    /// memory and either of the two writes.
    pub fn new<T: Element>(
        array: &Bound<'_, PyArrayDyn<T>>,
        borrowed: A,
        writes: bool,
    ) -> Option<Claimed<A>> {
        let start = array.data().addr();
        let addresses = start..start + size_of::<T>() * array.len();
        Some(Claimed {
            array: borrowed,
            _claim: Claim::new(Use { addresses, writes })?,
        })
    }
}

impl<A> Deref for Claimed<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.array
    }
}

impl<A> DerefMut for Claimed<A> {
    fn deref_mut(&mut self) -> &mut A {
        &mut self.array
    }
}
