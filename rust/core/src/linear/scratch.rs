//! Memory that a thread keeps from one node to the next.

/// Scores and factors of the records of one batch.
#[derive(Debug)]
pub(super) struct Scratch<T> {
    pub(super) scores: Vec<f64>,
    pub(super) factors: Vec<T>,
}

impl<T> Scratch<T> {
    pub(super) fn new() -> Scratch<T> {
        Scratch {
            scores: Vec::new(),
            factors: Vec::new(),
        }
    }
}
