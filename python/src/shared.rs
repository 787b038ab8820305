//! What a session shares with its queries: DataFusion's context, and the tables that single statements see.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference};
use datafusion::prelude::SessionContext;
use pyo3::prelude::*;
use tokio::sync::RwLock;

/// Tables that one statement sees, by name.
pub type Frames = Vec<(String, Arc<dyn TableProvider>)>;

/// A session and its lock.
pub struct Shared {
    pub ctx: SessionContext,
    /// Held while names are resolved, exclusively by a statement with frames: these are registered for that time, and
    /// no other statement sees them.
    pub names: RwLock<()>,
    /// Makes a progress bar.
    pub progress: Option<Py<PyAny>>,
}

impl Shared {
    /// Does `work`, in which names are resolved, with these frames as tables. A registered table hides a frame.
    pub async fn with_frames<T>(
        &self,
        frames: &Frames,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if frames.is_empty() {
            let _shared = self.names.read().await;
            return work.await;
        }
        let _exclusive = self.names.write().await;
        let mut registered = Registered {
            ctx: &self.ctx,
            names: vec![],
        };
        for (name, table) in frames {
            let reference = TableReference::bare(name.as_str());
            if !self.ctx.table_exist(reference.clone())? {
                self.ctx
                    .register_table(reference.clone(), Arc::clone(table))?;
                registered.names.push(reference);
            }
        }
        work.await
    }
}

/// Registered frames, which are tables until this is dropped, also if the work is cancelled.
struct Registered<'a> {
    ctx: &'a SessionContext,
    names: Vec<TableReference>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        for name in self.names.drain(..) {
            // It fails only if the schema is gone, and the table with it.
            let _ = self.ctx.deregister_table(name);
        }
    }
}
