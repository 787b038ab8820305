//! Why a rule leaves a plan unchanged.

use std::fmt::{self, Display};

use datafusion_common::{DataFusionError, Result};

/// What a rule found in a plan, or why the plan does not match.
pub type Match<T> = Result<T, Rejection>;

/// Why a plan does not match a rule. Errors of DataFusion on the way are rejections, too: a rule that rewrites plain
/// SQL does not fail.
#[derive(Debug)]
pub struct Rejection(String);

impl Rejection {
    /// A rejection for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
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

/// Rejects a plan for this reason.
pub fn reject<T>(reason: impl Into<String>) -> Match<T> {
    Err(Rejection::new(reason))
}

/// Why a comparison with columns of both sides in one operand is rejected.
pub fn mixes_sides(comparison: &str) -> String {
    format!(
        "{comparison} mixes the sides: write the columns of one side on the left and those of the other on the right, as \
         in p.ts <= 4 - q.ts for p.ts + q.ts <= 4"
    )
}

/// The same of a comparison of the later start of two rows with the earlier end.
pub fn mixes_ends(comparison: &str) -> String {
    format!(
        "{comparison} mixes the sides: write a comparison of each two columns, as in p.start < q.end AND q.start < p.end \
         for greatest(p.start, q.start) < least(p.end, q.end)"
    )
}

/// What was found, if anything. The log says why `what` stays as it is otherwise.
pub fn or_log<T>(found: Match<T>, what: impl Display) -> Option<T> {
    found
        .inspect_err(|reason| log::debug!("{what} stays as it is: {reason}"))
        .ok()
}
