//! What planning needs of a session.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::{Result, plan_datafusion_err};
use datafusion::prelude::SessionConfig;

use crate::kept::catalog::{IndexCatalog, SessionCatalog};
use datafusion_rmq_logical::common::column_ref::Names;

/// A session's catalogs and indexes.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) names: Names,
    pub(crate) indexes: Arc<IndexCatalog>,
}

/// The names of the registration as an extension of the session's configuration, where any query planner finds it.
#[derive(Debug)]
struct Extension {
    names: Names,
}

impl Registration {
    /// Adds the registration to a session's configuration, and replaces an earlier one.
    pub(crate) fn add_to(&self, config: SessionConfig) -> SessionConfig {
        let extension = Extension {
            names: self.names.clone(),
        };
        config
            .with_extension(Arc::new(extension))
            .with_extension(Arc::new(SessionCatalog::new(&self.indexes)))
    }

    /// The registration in a session's configuration, if there is one and its session still exists.
    pub(crate) fn find(session: &dyn Session) -> Option<Self> {
        let extension = session.config().get_extension::<Extension>()?;
        Some(Self {
            names: extension.names.clone(),
            indexes: SessionCatalog::of(session.config())?,
        })
    }

    /// The registration in a session's configuration.
    ///
    /// # Errors
    /// A planning error if this crate is not registered with the session.
    pub(crate) fn of(session: &dyn Session) -> Result<Self> {
        Self::find(session).ok_or_else(|| {
            plan_datafusion_err!(
                "range queries are not registered with this session: call datafusion_rmq::register, or with_rmq on its builder"
            )
        })
    }
}
