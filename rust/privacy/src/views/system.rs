//! The public numbers of a run, checked; and which messages an observer sees.

use std::sync::OnceLock;

use super::sparse::Rows;
use crate::KernelError;
use dpmesh_numerics::check::{non_negative, require};

/// A step of mixing: the messages of round `sent` enter the states of round `mixed + 1`, weighted by a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Mixing {
    /// The round in which the messages are mixed.
    pub mixed: usize,
    /// The round in which they were sent, at most `mixed`.
    pub sent: usize,
    /// Number of the matrix of weights.
    pub matrix: usize,
    /// Factor of the matrix: the Lipschitz constant of the step that follows.
    pub gain: f64,
}

/// The public numbers of a run. An array of shape (rounds, nodes) has the entry of node `j` in round `t` at
/// `t * nodes + j`.
///
/// Its fields are public so that all of them are stated, by name: a bound that misses a message may be too small.
#[derive(Debug, Clone, Copy)]
pub struct Description<'a> {
    /// Number of nodes.
    pub nodes: usize,
    /// Matrices below one another, in compressed rows: first entry of each row, and the end of the last.
    pub indptr: &'a [i64],
    /// Column of each entry.
    pub indices: &'a [i64],
    /// Weight of each entry, at least 0.
    pub weights: &'a [f64],
    /// The steps of mixing, in any order.
    pub mixings: &'a [Mixing],
    /// Contraction factor `c_t`: the share of the difference `z_t` of a node's state that its next state keeps; shape
    /// (rounds).
    pub own: &'a [f64],
    /// Standard deviation `sigma` of the noise of each message, shape (rounds, nodes); positive from the first round on
    /// in which the record moves a state.
    pub noise: &'a [f64],
    /// Sensitivity `s`: how far a record of a node itself moves the node's state of a round, shape (rounds, nodes).
    pub fresh: &'a [f64],
    /// Distance that rounding states and shifts to a grid may add between two vectors: the grid's step times
    /// `sqrt(dim)`.
    pub rounding: f64,
    /// Whether a message is public, shape (rounds, nodes); empty if none is.
    pub published: &'a [bool],
    /// Messages that arrive without being mixed: (round in which it was sent, receiver, sender).
    pub received: &'a [(usize, usize, usize)],
    /// Whether the mean of the last round's messages is published.
    pub mean_of_last: bool,
}

/// Nodes that pool what they receive, send and hold; none for an adversary who sees public messages alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observer(pub Vec<usize>);

/// A run, ready to be solved for any observer and target.
#[derive(Debug)]
pub struct System {
    pub(super) nodes: usize,
    pub(super) rounds: usize,
    /// The first round in which a record moves a state; no difference arises before.
    pub(super) start: usize,
    pub(super) matrices: Vec<Rows>,
    pub(super) transposed: Vec<Rows>,
    /// Sorted by `mixed`; those of round `t` are `by_round[t]..by_round[t + 1]`.
    mixings: Vec<Mixing>,
    by_round: Vec<usize>,
    /// Indices of `mixings`, sorted by `sent`; those of round `t` are `by_sent_round[t]..by_sent_round[t + 1]`.
    by_sent: Vec<usize>,
    by_sent_round: Vec<usize>,
    pub(super) own: Vec<f64>,
    pub(super) noise: Vec<f64>,
    pub(super) inverse_noise: Vec<f64>,
    pub(super) fresh: Vec<f64>,
    pub(super) rounding: f64,
    published: Vec<bool>,
    received: Vec<(usize, usize, usize)>,
    pub(super) mean_of_last: bool,
    /// Largest curvature of half the sum of squares, or an estimate of it, once a search has asked for it.
    pub(super) curvature: OnceLock<f64>,
}

impl System {
    /// The run that is described.
    ///
    /// # Errors
    /// If an argument has the wrong number of elements, a number is negative or not finite, a mixing refers to a later
    /// round or an unknown matrix, or noise is missing once the record has moved a state.
    pub fn new(of: &Description<'_>) -> Result<System, KernelError> {
        let (nodes, rounds) = (of.nodes, of.own.len());
        let matrices = Rows::stacked(of.indptr, of.indices, of.weights, nodes)?;
        check(of, rounds, matrices.len())?;
        let start = of.fresh.iter().position(|&moved| moved > 0.0);
        let start = start.map_or(rounds, |entry| entry / nodes);
        for &noise in &of.noise[start * nodes..] {
            let holds = noise.is_finite() && noise > 0.0;
            require(holds, "noise", "a finite number greater than 0", noise)?;
        }
        let mut mixings = of.mixings.to_vec();
        mixings.sort_by_key(|mixing| (mixing.mixed, mixing.sent));
        let by_round = (0..=rounds).map(|t| mixings.partition_point(|mixing| mixing.mixed < t));
        let mut by_sent: Vec<usize> = (0..mixings.len()).collect();
        by_sent.sort_by_key(|&mixing| mixings[mixing].sent);
        let by_sent_round = (0..=rounds)
            .map(|t| by_sent.partition_point(|&mixing| mixings[mixing].sent < t))
            .collect();
        Ok(System {
            nodes,
            rounds,
            start,
            transposed: matrices.iter().map(Rows::transposed).collect(),
            matrices,
            by_round: by_round.collect(),
            by_sent,
            by_sent_round,
            mixings,
            own: of.own.to_vec(),
            noise: of.noise.to_vec(),
            inverse_noise: of.noise.iter().map(|noise| 1.0 / noise).collect(),
            fresh: of.fresh.to_vec(),
            rounding: of.rounding,
            published: of.published.to_vec(),
            received: of.received.to_vec(),
            mean_of_last: of.mean_of_last,
            curvature: OnceLock::new(),
        })
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The `mu` against an adversary who sees every message: nothing is absorbed (`r = 0`), so that the record moves the
    /// messages of the target alone.
    ///
    /// # Errors
    /// If there is no such target.
    pub fn everybody(&self, target: usize) -> Result<f64, KernelError> {
        self.known("target", target)?;
        let (mut moved, mut squares, mut has_moved) = (0.0, 0.0, false);
        for t in self.start..self.rounds {
            let entry = t * self.nodes + target;
            let kept = if t > self.start {
                self.own[t - 1] * moved
            } else {
                0.0
            };
            has_moved |= self.fresh[entry] > 0.0;
            moved = kept + self.fresh[entry] + if has_moved { self.rounding } else { 0.0 };
            let share = moved * self.inverse_noise[entry];
            squares += share * share;
        }
        Ok(squares.sqrt())
    }

    /// Which messages an observer sees, shape (rounds, nodes).
    ///
    /// # Errors
    /// If a member is unknown.
    pub fn seen(&self, observer: &Observer) -> Result<Vec<bool>, KernelError> {
        let nodes = self.nodes;
        let mut seen = vec![false; self.rounds * nodes];
        seen[..self.published.len()].copy_from_slice(&self.published);
        for &member in &observer.0 {
            self.known("observer", member)?;
            for t in 0..self.rounds {
                seen[t * nodes + member] = true;
            }
            for mixing in &self.mixings {
                for (sender, weight) in self.matrices[mixing.matrix].row(member) {
                    seen[mixing.sent * nodes + sender] |= weight > 0.0;
                }
            }
        }
        for &(round, receiver, sender) in &self.received {
            if observer.0.contains(&receiver) {
                seen[round * nodes + sender] = true;
            }
        }
        Ok(seen)
    }

    /// The mixings in a round, whose results are the states of the next.
    pub(super) fn mixed_in(&self, round: usize) -> &[Mixing] {
        &self.mixings[self.by_round[round]..self.by_round[round + 1]]
    }

    /// The mixings of the messages of a round, in this round or later.
    pub(super) fn sent_in(&self, round: usize) -> impl Iterator<Item = &Mixing> {
        let mixings = self.by_sent_round[round]..self.by_sent_round[round + 1];
        self.by_sent[mixings]
            .iter()
            .map(|&mixing| &self.mixings[mixing])
    }

    /// Whether the states of a round depend on the messages of the round before alone.
    pub(super) fn is_memoryless(&self) -> bool {
        let is_punctual = |mixing: &Mixing| mixing.sent == mixing.mixed;
        self.own.iter().all(|&kept| kept == 0.0) && self.mixings.iter().all(is_punctual)
    }

    /// Fails unless there is such a node.
    pub(super) fn known(&self, argument: &'static str, node: usize) -> Result<(), KernelError> {
        if node < self.nodes {
            return Ok(());
        }
        let wanted = format!("a node below {}", self.nodes);
        Err(KernelError::new(argument, wanted, node))
    }
}

fn check(of: &Description<'_>, rounds: usize, matrices: usize) -> Result<(), KernelError> {
    let entries = rounds * of.nodes;
    same_len("noise", of.noise.len(), entries)?;
    same_len("fresh", of.fresh.len(), entries)?;
    if !of.published.is_empty() {
        same_len("published", of.published.len(), entries)?;
    }
    non_negative("rounding", of.rounding)?;
    for &kept in of.own {
        non_negative("own", kept)?;
    }
    for &moved in of.fresh {
        non_negative("fresh", moved)?;
    }
    for mixing in of.mixings {
        non_negative("gain", mixing.gain)?;
        below("mixed", mixing.mixed, rounds)?;
        below("sent", mixing.sent, mixing.mixed + 1)?;
        below("matrix", mixing.matrix, matrices)?;
    }
    for &(round, receiver, sender) in of.received {
        below("received", round, rounds)?;
        below("received", receiver.max(sender), of.nodes)?;
    }
    Ok(())
}

fn same_len(argument: &'static str, len: usize, wanted: usize) -> Result<(), KernelError> {
    if len == wanted {
        return Ok(());
    }
    Err(KernelError::new(
        argument,
        format!("{wanted} elements"),
        len,
    ))
}

fn below(argument: &'static str, value: usize, bound: usize) -> Result<(), KernelError> {
    if value < bound {
        return Ok(());
    }
    Err(KernelError::new(
        argument,
        format!("numbers below {bound}"),
        value,
    ))
}
