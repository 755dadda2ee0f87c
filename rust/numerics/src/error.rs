//! The error for an argument that does not fit.

use std::fmt;

/// Why an argument does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A number or a choice is out of its range.
    Value,
    /// A length does not fit that of another argument.
    Length,
    /// An index names what does not exist, or something twice.
    Index,
    /// A number is NaN or infinite.
    NotFinite,
    /// A stream has fewer words than are asked for: it never repeats itself.
    Exhausted,
}

/// An argument that a function refuses: which one, what was wanted, what it got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelError {
    kind: ErrorKind,
    argument: &'static str,
    wanted: String,
    got: String,
}

impl KernelError {
    /// The error for `argument` when `wanted` was not met by `got`, of the kind [`ErrorKind::Value`].
    pub fn new(
        argument: &'static str,
        wanted: impl Into<String>,
        got: impl fmt::Display,
    ) -> KernelError {
        KernelError {
            kind: ErrorKind::Value,
            argument,
            wanted: wanted.into(),
            got: got.to_string(),
        }
    }

    /// The same error, of another kind.
    #[must_use]
    pub fn of_kind(self, kind: ErrorKind) -> KernelError {
        KernelError { kind, ..self }
    }

    /// Why the argument does not fit.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Name of the argument, as in the signature of the function.
    pub fn argument(&self) -> &'static str {
        self.argument
    }

    /// What the function wants.
    pub fn wanted(&self) -> &str {
        &self.wanted
    }

    /// What it got.
    pub fn got(&self) -> &str {
        &self.got
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelError {
            kind: _,
            argument,
            wanted,
            got,
        } = self;
        write!(f, "{argument}: wanted {wanted}, got {got}")
    }
}

impl std::error::Error for KernelError {}
