//! The forward pass of a batch of states through a network.

use pulp::{Arch, Simd, WithSimd};

use super::{ACTIONS, LANES, Shape};

/// A batch of states, its hidden units and its values; blocks of `B` samples share each read of the weights.
pub(super) struct Pass<const B: usize> {
    shape: Shape,
    /// `[blocks][inputs][B]`.
    x: Vec<[f32; B]>,
    /// `[groups][registers of a row][batch]`, in registers.
    hidden: Vec<f32>,
    /// The values before they are summed over the lanes: `[batch]`.
    lanes: Vec<[[f32; LANES]; ACTIONS]>,
    /// `[batch]`.
    values: Vec<[f32; ACTIONS]>,
}

impl<const B: usize> Pass<B> {
    /// Room for `samples`, padded to whole blocks with states of zeros.
    pub(super) fn new(shape: Shape, samples: usize) -> Pass<B> {
        let batch = samples.next_multiple_of(B);
        Pass {
            shape,
            x: vec![[0.0; B]; batch / B * shape.inputs],
            hidden: vec![0.0; shape.groups * batch * LANES],
            lanes: vec![[[0.0; LANES]; ACTIONS]; batch],
            values: vec![[0.0; ACTIONS]; batch],
        }
    }

    /// Takes the states in.
    pub(super) fn enter<'a>(&mut self, states: impl Iterator<Item = &'a [f32]>) {
        let inputs = self.shape.inputs;
        for (sample, state) in states.enumerate() {
            let block = &mut self.x[sample / B * inputs..][..inputs];
            for (x, &value) in block.iter_mut().zip(state) {
                x[sample % B] = value;
            }
        }
    }

    /// The values of the last run, those of padding included.
    pub(super) fn values(&self) -> &[[f32; ACTIONS]] {
        &self.values
    }

    /// Computes hidden units and values, in the widest registers of this processor.
    pub(super) fn run(&mut self, network: &[f32]) {
        struct Run<'a, const B: usize>(&'a mut Pass<B>, &'a [f32]);
        impl<const B: usize> WithSimd for Run<'_, B> {
            type Output = ();
            #[inline(always)]
            fn with_simd<S: Simd>(self, simd: S) {
                self.0.forward(simd, self.1);
            }
        }
        Arch::new().dispatch(Run(self, network));
    }

    /// Computes hidden units and values.
    #[inline(always)]
    pub(super) fn forward<S: Simd>(&mut self, simd: S, network: &[f32]) {
        let registers = const { registers_of_a_row::<S>() };
        let inputs = self.shape.inputs;
        let batch = self.values.len();
        let zero = simd.splat_f32s(0.0);
        let negative_slope = simd.splat_f32s(self.shape.activation.negative_slope());
        let (groups, output_biases) = network.split_at(network.len() - LANES);
        let (groups, _) = S::as_simd_f32s(groups);
        let (hidden, _) = S::as_mut_simd_f32s(&mut self.hidden);
        let (lanes, _) = S::as_mut_simd_f32s(self.lanes.as_flattened_mut().as_flattened_mut());
        lanes.fill(zero);
        let groups = groups.chunks_exact(self.shape.group_rows() * registers);
        for (group, hidden) in groups.zip(hidden.chunks_exact_mut(registers * batch)) {
            let (weights, rest) = group.split_at(inputs * registers);
            for (r, hidden) in hidden.chunks_exact_mut(batch).enumerate() {
                let (bias, local) = (rest[r], rest[registers + r]);
                let global = rest[2 * registers + r];
                let blocks = (self.x.chunks_exact(inputs))
                    .zip(hidden.as_chunks_mut::<B>().0)
                    .zip(lanes.chunks_exact_mut(B * ACTIONS * registers));
                for ((x, hidden), lanes) in blocks {
                    let mut sums = [bias; B];
                    for (x, w) in x.iter().zip(weights.chunks_exact(registers)) {
                        for (sum, x) in sums.iter_mut().zip(x) {
                            *sum = simd.mul_add_f32s(simd.splat_f32s(*x), w[r], *sum);
                        }
                    }
                    let lanes = lanes.chunks_exact_mut(ACTIONS * registers);
                    for ((sum, hidden), lanes) in sums.iter().zip(hidden).zip(lanes) {
                        let negative = simd.less_than_f32s(*sum, zero);
                        let scaled = simd.mul_f32s(negative_slope, *sum);
                        *hidden = simd.select_f32s(negative, scaled, *sum);
                        lanes[r] = simd.mul_add_f32s(*hidden, local, lanes[r]);
                        let r = registers + r;
                        lanes[r] = simd.mul_add_f32s(*hidden, global, lanes[r]);
                    }
                }
            }
        }
        for (values, lanes) in self.values.iter_mut().zip(&self.lanes) {
            for ((value, lanes), bias) in values.iter_mut().zip(lanes).zip(output_biases) {
                *value = lane_sum(*lanes) + bias;
            }
        }
    }

    /// The states, block by block, and register `r` of group `g` of their hidden units.
    #[inline(always)]
    pub(super) fn states_and_hidden<S: Simd>(
        &mut self,
        g: usize,
        r: usize,
    ) -> (&[[f32; B]], &mut [S::f32s]) {
        let batch = self.values.len();
        let start = (g * const { registers_of_a_row::<S>() } + r) * batch;
        let (hidden, _) = S::as_mut_simd_f32s(&mut self.hidden);
        (&self.x, &mut hidden[start..start + batch])
    }
}

/// How many registers a row of [`LANES`] numbers fills.
pub(super) const fn registers_of_a_row<S: Simd>() -> usize {
    assert!(
        LANES.is_multiple_of(S::F32_LANES),
        "rows are cut into whole registers"
    );
    LANES / S::F32_LANES
}

/// Sum of the lanes: the upper half is added to the lower until one is left.
#[inline(always)]
fn lane_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
