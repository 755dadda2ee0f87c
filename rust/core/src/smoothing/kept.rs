//! What a thread keeps from one call to the next.

use std::any::Any;
use std::cell::Cell;
use std::mem::take;
use std::rc::Rc;

use pulp::bytemuck::cast_slice_mut;

use super::Smooth;
use super::tiles::{LANES, Lanes, Tiling};
use crate::cache::at_line;

thread_local! {
    static SCRATCH: Cell<Vec<f64>> = const { Cell::new(Vec::new()) };
    static LAST: Cell<Option<Rc<dyn Any>>> = const { Cell::new(None) };
}

/// The value of the thread's last call if it `fits`, otherwise a `new` one.
pub(super) fn last_or_new<R: 'static>(
    fits: impl FnOnce(&R) -> bool,
    new: impl FnOnce() -> R,
) -> Rc<R> {
    let last = LAST.take().and_then(|last| last.downcast().ok());
    let last = last.filter(|last: &Rc<R>| fits(last));
    let value = last.unwrap_or_else(|| Rc::new(new()));
    LAST.set(Some(value.clone()));
    value
}

/// A thread's scratch memory, kept because clearing it takes a tenth of the time of a short row.
pub(super) struct Scratch(Vec<f64>);

impl Scratch {
    pub(super) fn kept() -> Scratch {
        Scratch(SCRATCH.take())
    }

    /// Memory for whole tiles, and for `y` of their elements; both have any content and begin at a cache line.
    pub(super) fn parts<A: Smooth>(&mut self) -> (&mut [A], &mut [Lanes<A>]) {
        let elements = LANES * Tiling::whole::<A>().length;
        let len = 2 * elements * size_of::<A>() / size_of::<f64>();
        let (tiles, y) = cast_slice_mut(at_line(&mut self.0, len)).split_at_mut(elements);
        (tiles, y.as_chunks_mut().0)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        SCRATCH.set(take(&mut self.0));
    }
}
