//! Why a query is left as it was.

use std::fmt::{self, Display};

use datafusion::common::DataFusionError;

/// What a rule finds in a plan, or why it is not what the rule looks for.
pub(crate) type Match<T> = Result<T, Rejection>;

/// Why a plan is not what a rule looks for. An error on the way is such a reason, too: a rule gives no errors.
#[derive(Debug)]
pub(crate) struct Rejection(String);

impl Rejection {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<DataFusionError> for Rejection {
    fn from(error: DataFusionError) -> Self {
        Self(error.strip_backtrace())
    }
}

/// Ends the search with a reason.
pub(crate) fn reject<T>(reason: impl Into<String>) -> Match<T> {
    Err(Rejection::new(reason))
}
