//! Why a lateral join is left as it is.

use datafusion::common::DataFusionError;

/// Why there is no plan.
pub(crate) enum Refusal {
    /// The lateral join is not for this rule.
    Reason(String),
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
    Err(Refusal::Reason(reason.into()))
}
