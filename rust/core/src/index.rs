//! The integer types of sparse matrices' indices.

/// The integers that index a sparse matrix.
pub trait Index: Copy + Ord + Send + Sync + std::fmt::Debug + 'static {
    /// The same number; if negative, one beyond the length of any slice.
    fn position(self) -> usize;
}

macro_rules! index {
    ($($integer:ty),+) => {
        $(impl Index for $integer {
            #[inline(always)]
            fn position(self) -> usize {
                self as usize
            }
        })+
    };
}

index!(i32, i64, usize);
