//! What planning needs of a session.

use std::sync::{Arc, Weak};

use datafusion::catalog::Session;
use datafusion::common::{Result, plan_datafusion_err};
use datafusion::prelude::SessionConfig;

use crate::common::column_ref::Names;
use crate::index::catalog::IndexCatalog;
use crate::optimizer::rejection::RejectionLog;

/// A session's catalogs and indexes.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) names: Names,
    pub(crate) indexes: Arc<IndexCatalog>,
}

/// The registration as an extension of the session's configuration, where any query planner finds it. Configurations
/// are copied into task contexts and by callers, so it does not keep the indexes: the session's functions do.
#[derive(Debug)]
struct Extension {
    names: Names,
    indexes: Weak<IndexCatalog>,
}

impl Registration {
    /// Adds the registration to a session's configuration, and replaces an earlier one. Also adds the notes of why
    /// rules reject subqueries.
    pub(crate) fn add_to(&self, config: SessionConfig) -> SessionConfig {
        let extension = Extension {
            names: self.names.clone(),
            indexes: Arc::downgrade(&self.indexes),
        };
        config
            .with_extension(Arc::new(extension))
            .with_option_extension(RejectionLog::default())
    }

    /// The registration in a session's configuration, if there is one and its session still exists.
    pub(crate) fn find(session: &dyn Session) -> Option<Self> {
        let extension = session.config().get_extension::<Extension>()?;
        Some(Self {
            names: extension.names.clone(),
            indexes: extension.indexes.upgrade()?,
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
