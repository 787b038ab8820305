//! What planning needs of a session.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::{Result, plan_datafusion_err};

use crate::common::column_ref::Names;
use crate::index::catalog::IndexCatalog;

/// The session's catalogs and indexes. An extension of the session's configuration, where any query planner finds it.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) names: Names,
    pub(crate) indexes: Arc<IndexCatalog>,
}

impl Registration {
    /// The registration in a session's configuration.
    ///
    /// # Errors
    /// A planning error if this crate is not registered with the session.
    pub(crate) fn of(session: &dyn Session) -> Result<Arc<Self>> {
        session.config().get_extension().ok_or_else(|| {
            plan_datafusion_err!(
                "range queries are not registered with this session: call datafusion_rmq::register, or with_rmq on its builder"
            )
        })
    }
}
