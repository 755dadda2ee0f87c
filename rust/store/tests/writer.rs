//! A copy past the cache is exact, wherever it begins and ends, and nothing beside it changes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dpmesh_store::{Number, past_cache};

fn copies<T: Number + From<u8> + PartialEq>() {
    let from: Vec<T> = (0..200).map(T::from).collect();
    let untouched = T::from(255);
    for begin in 0..40 {
        for len in 0..=200 {
            let mut to = [untouched; 250];
            past_cache(|writer| writer.copy(&mut to[begin..begin + len], &from[..len]));
            assert!(to[begin..begin + len] == from[..len], "{begin} {len}");
            let beside = to[..begin].iter().chain(&to[begin + len..]);
            assert!(beside.into_iter().all(|&v| v == untouched), "{begin} {len}");
        }
    }
}

#[test]
fn a_slice_at_any_place_is_copied_and_nothing_else() {
    copies::<f32>();
    copies::<f64>();
}

#[test]
fn another_thread_sees_what_was_written() {
    let from: Vec<f32> = (0..1 << 16).map(|i| i as f32).collect();
    let mut to = vec![0.0; 1 << 16];
    for _ in 0..100 {
        to.fill(0.0);
        past_cache(|writer| {
            for (to, from) in to.chunks_mut(500).zip(from.chunks(500)) {
                writer.copy(to, from);
            }
        });
        std::thread::scope(|scope| scope.spawn(|| assert!(to == from)).join().unwrap());
    }
}

#[test]
fn slices_of_different_lengths_are_refused() {
    let mut to = [0.0_f32; 3];
    let copy = || past_cache(|writer| writer.copy(&mut to, &[1.0; 2]));
    assert!(catch_unwind(AssertUnwindSafe(copy)).is_err());
}
