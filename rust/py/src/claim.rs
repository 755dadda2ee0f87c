//! Which memory the arguments of a call use: what a kernel writes to one of them, it reads or writes in no other.
//!
//! The borrows of the `numpy` crate say so of arrays with the same base, such as views of each other, also in other
//! threads. Arrays may lie in the same memory and have bases of their own, as those of `as_strided` and `frombuffer`:
//! these meet here, where they are arguments of one call.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};

use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

thread_local! {
    /// Of the arguments of the call that this thread is in; `None` where one is over before those after it.
    static USES: RefCell<Vec<Option<Use>>> = const { RefCell::new(Vec::new()) };
}

/// What a kernel does with some bytes.
struct Use {
    addresses: Range<usize>,
    writes: bool,
}

impl Use {
    #[inline]
    fn is_against(&self, other: &Use) -> bool {
        let (own, others) = (&self.addresses, &other.addresses);
        let meet = own.start.max(others.start) < own.end.min(others.end);
        meet && (self.writes || other.writes)
    }
}

/// The right to use the memory of an array, until this is dropped: its place among the uses.
struct Claim(usize);

impl Claim {
    #[inline]
    fn new(claimed: Use) -> Option<Claim> {
        USES.with_borrow_mut(|uses| {
            if uses.iter().flatten().any(|other| claimed.is_against(other)) {
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
    /// What was `borrowed` of a C-contiguous array; `None` if another argument writes its memory, or if this borrow
    /// is one that `writes` and another argument has it.
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
