//! One tile of the two recursions, a vector of `W` neighbouring elements at a time.
//!
//! `y_i = v_i + r y_(i-1)` looks serial. Within a vector it takes log2 W steps, each adding to every lane what lies
//! 1, 2, 4.. lanes before it, times `r^1, r^2, r^4`..; what comes from before the vector is one number, the carry,
//! which enters lane `l` times `r^(l+1)`. The width is fixed, so that the bits are the same on every processor.

use crate::Real;

/// Steps that a vector of 8 lanes takes.
const STEPS: usize = 3;

/// Vectors between two looks at the carry.
const GROUP: usize = 8;

/// A recursion from the first lane of a vector to the last, or `REVERSED`.
struct Direction<A, const W: usize, const REVERSED: bool> {
    /// Weight in step `k` of the lane that lies `2^k` before; 0 where there is none.
    steps: [[A; W]; STEPS],
    /// Weight of the carry.
    decay: [A; W],
    /// `r^W`.
    ratio: A,
}

impl<A: Real, const W: usize, const REVERSED: bool> Direction<A, W, REVERSED> {
    fn new(power: impl Fn(usize) -> A) -> Self {
        let along = |value: &dyn Fn(usize) -> A| {
            std::array::from_fn(|l| value(if REVERSED { W - 1 - l } else { l }))
        };
        Direction {
            steps: std::array::from_fn(|k| {
                along(&|l| if l < 1 << k { A::ZERO } else { power(1 << k) })
            }),
            decay: along(&|l| power(l + 1)),
            ratio: power(W),
        }
    }

    /// The recursion over one vector; `carry` (the same in all lanes) becomes that of the next.
    #[inline(always)]
    fn advance(&self, v: [A; W], carry: &mut [A; W]) -> [A; W] {
        let mut sum = v;
        for (k, weights) in self.steps.iter().enumerate() {
            let distance = 1 << k;
            if distance < W {
                let from = if REVERSED { distance } else { W - distance };
                let mut next = sum;
                for l in 0..W {
                    next[l] = weights[l].mul_add(sum[(l + from) % W], sum[l]);
                }
                sum = next;
            }
        }
        let last = sum[if REVERSED { 0 } else { W - 1 }];
        for l in 0..W {
            sum[l] = self.decay[l].mul_add(carry[l], sum[l]);
            carry[l] = self.ratio.mul_add(carry[l], last);
        }
        sum
    }
}

/// The two recursions of one smoothing, in arithmetic of type `A`.
pub(super) struct Sweep<A, const W: usize> {
    forward: Direction<A, W, false>,
    backward: Direction<A, W, true>,
    r: A,
    scale: A,
}

impl<A: Real, const W: usize> Sweep<A, W> {
    /// For the powers of `r`, and the factor of the result.
    pub(super) fn new(power: impl Fn(usize) -> f64, scale: f64) -> Self {
        let power = |k| match power(k) {
            // So small that it adds nothing, and would make slow subnormal numbers.
            p if p < 1e-30 => A::ZERO,
            p => A::from_f64(p),
        };
        Sweep {
            forward: Direction::new(power),
            backward: Direction::new(power),
            r: power(1),
            scale: A::from_f64(scale),
        }
    }

    /// `y_i = v_i + r y_(i-1)`, where `carry` stands before the first; gives the last.
    #[inline(always)]
    pub(super) fn forward<T: Real>(&self, v: &[T], y: &mut [A], carry: f64) -> f64 {
        let (vectors, rest) = v.as_chunks::<W>();
        let (y_vectors, y_rest) = y.as_chunks_mut::<W>();
        let mut carry = [A::from_f64(carry); W];
        for (vectors, y_vectors) in vectors.chunks(GROUP).zip(y_vectors.chunks_mut(GROUP)) {
            without_subnormals(&mut carry);
            for (v, y) in vectors.iter().zip(y_vectors) {
                *y = self.forward.advance(v.map(convert), &mut carry);
            }
        }
        let mut last = carry[0];
        for (v, y) in rest.iter().zip(y_rest) {
            last = self.r.mul_add(last, convert(*v));
            *y = last;
        }
        last.to_f64()
    }

    /// `u_i = scale w_i` with `w_i = y_i + r w_(i+1)`, where `carry` stands behind the last.
    #[inline(always)]
    pub(super) fn backward<T: Real>(&self, y: &[A], u: &mut [T], carry: f64) {
        let (vectors, rest) = y.as_chunks::<W>();
        let (u_vectors, u_rest) = u.as_chunks_mut::<W>();
        let mut last = A::from_f64(carry);
        for (y, u) in rest.iter().zip(u_rest).rev() {
            last = self.r.mul_add(last, *y);
            *u = convert(last * self.scale);
        }
        let mut carry = [last; W];
        for (vectors, u_vectors) in vectors.rchunks(GROUP).zip(u_vectors.rchunks_mut(GROUP)) {
            without_subnormals(&mut carry);
            for (y, u) in vectors.iter().zip(u_vectors).rev() {
                let w = self.backward.advance(*y, &mut carry);
                *u = w.map(
                    #[inline(always)]
                    |w| convert(w * self.scale),
                );
            }
        }
    }
}

/// Zeros hold a carry that decays at the smallest subnormal number for ever, where arithmetic is slow.
#[inline(always)]
fn without_subnormals<A: Real, const W: usize>(carry: &mut [A; W]) {
    if carry[0].abs() < A::MIN_POSITIVE * A::from_f64(f64::from(1 << 20)) {
        *carry = [A::ZERO; W];
    }
}

#[inline(always)]
fn convert<T: Real, A: Real>(value: T) -> A {
    A::from_f64(value.to_f64())
}
