//! Scores of all records, without labels.

use super::Features;
use super::evaluation::RECORDS_PER_TASK;
use crate::error::{rows, same_len};
use crate::parallel::share_rows;
use crate::{KernelError, Real};

/// Scores of all records under each row of `params`, whose rows have one element for each feature: element
/// `r * rows + k` of `out` is that of record `r` and row `k`.
///
/// # Errors
/// If `params` is not a whole number of rows, `out` does not have one element for each pair, or a record is not
/// well-formed.
pub fn scores_into<F: Features>(
    features: &F,
    params: &[F::Value],
    out: &mut [F::Value],
) -> Result<(), KernelError> {
    let outputs = rows("params", params.len(), features.columns())?;
    same_len("out", out.len(), outputs * features.records())?;
    if outputs == 0 {
        return Ok(());
    }
    (0..features.records()).try_for_each(|record| features.check(record))?;
    let cost = RECORDS_PER_TASK * outputs * features.cost();
    let width = RECORDS_PER_TASK * outputs;
    share_rows(
        out,
        width,
        cost,
        || (),
        |(), block, out| {
            let first = block * RECORDS_PER_TASK;
            let records: Vec<i64> = (first..first + out.len() / outputs)
                .map(|r| r as i64)
                .collect();
            let mut scores = vec![0.0; out.len()];
            features.scores(&records, params, &mut scores);
            for (out, score) in out.iter_mut().zip(scores) {
                *out = F::Value::from_f64(score);
            }
        },
    );
    Ok(())
}
