//! Memory that a thread keeps from one node to the next.

use crate::Real;
use crate::cache::{LINE, at_line};

/// The parameters, or a copy in `room` if they do not begin at a cache line: a vector that straddles two lines costs
/// two reads.
pub(super) fn on_lines<'a, T: Real>(params: &'a [T], room: &'a mut Vec<T>) -> &'a [T] {
    if params.as_ptr().align_offset(LINE) == 0 {
        return params;
    }
    let room = at_line(room, params.len());
    room.copy_from_slice(params);
    room
}

/// Scores and factors of the records of one batch, and the sum of their gradients.
#[derive(Debug)]
pub(super) struct Scratch<T> {
    pub(super) scores: Vec<f64>,
    pub(super) factors: Vec<T>,
    pub(super) sum: Vec<T>,
}

impl<T> Scratch<T> {
    pub(super) fn new() -> Scratch<T> {
        Scratch {
            scores: Vec::new(),
            factors: Vec::new(),
            sum: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_moved_to_a_line_only_where_they_are_elsewhere() {
        let numbers: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let first = numbers.as_ptr().align_offset(LINE);
        for offset in 0..20 {
            let params = &numbers[offset..offset + 50];
            let mut room = Vec::new();
            let there = on_lines(params, &mut room);
            assert_eq!(there, params);
            assert_eq!(there.as_ptr().align_offset(LINE), 0);
            let stays = there.as_ptr() == params.as_ptr();
            assert_eq!(stays, offset % 16 == first);
        }
    }
}
