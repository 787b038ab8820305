//! Why a dependent join has no plan.

use datafusion_common::DataFusionError;

/// Why there is no plan.
pub(crate) enum Refusal {
    /// It waits for another pass, or for another rule.
    Later(&'static str),
    /// There will be none.
    Never(String),
    /// DataFusion failed.
    Error(DataFusionError),
}

impl From<DataFusionError> for Refusal {
    fn from(error: DataFusionError) -> Self {
        Self::Error(error)
    }
}

/// A plan, or why there is none.
pub(crate) type Found<T> = Result<T, Refusal>;

/// Refuses with a reason.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Found<T> {
    Err(Refusal::Never(reason.into()))
}

/// Leaves a dependent join as it is for now.
pub(crate) fn wait<T>(reason: &'static str) -> Found<T> {
    Err(Refusal::Later(reason))
}

/// What was found, or nothing if it waits.
pub(crate) fn found_now<T>(found: Found<T>) -> Result<Option<T>, DataFusionError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Refusal::Later(reason)) => {
            log::debug!("a subquery stays as it is: {reason}");
            Ok(None)
        }
        Err(Refusal::Never(reason)) => Err(DataFusionError::Plan(format!(
            "a subquery that depends on the query around it has no plan: {reason}"
        ))),
        Err(Refusal::Error(error)) => Err(error),
    }
}
