//! How the library asks the owner for tables while a statement of the owner is planned.

use std::sync::Arc;
use std::thread;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use pyo3::prelude::*;

use crate::ffi::lender::LentTable;
use crate::runtime::handle;
use crate::shared::{Frames, Shared};
use crate::table_names::Names;

/// The owner of a session, and the session that it lends to.
#[derive(Clone)]
pub struct Lending {
    shared: Arc<Shared>,
    /// Takes names by their parts, and returns those that the owner has, with the tables.
    lend: Arc<Py<PyAny>>,
}

impl Lending {
    pub fn new(shared: Arc<Shared>, lend: Py<PyAny>) -> Self {
        let lend = Arc::new(lend);
        Self { shared, lend }
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The tables of the owner that a statement names.
    pub fn frames(&self, statement: &str) -> Result<Frames> {
        let names = Names::of(&self.shared.ctx.state(), statement)?.tables;
        let names: Vec<_> = names.into_iter().map(|name| name.to_vec()).collect();
        let lent = || {
            Python::try_attach(|py| {
                let lent = self.lend.bind(py).call1((names,))?;
                let lent: Vec<(Vec<String>, PyRef<'_, LentTable>)> = lent.extract()?;
                Ok(lent
                    .into_iter()
                    .map(|(name, table)| table.named(name))
                    .collect())
            })
        };
        let lent: PyResult<Result<Frames>> = elsewhere(lent)?.ok_or_else(stopped)?;
        lent.map_err(|error| DataFusionError::External(Box::new(error)))?
    }

    /// Does `work` with the tables of the owner that a statement names.
    pub fn with_frames<T: Send>(
        &self,
        statement: &str,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let frames = self.frames(statement)?;
        let runtime = Python::try_attach(handle).and_then(Result::ok);
        let runtime = runtime.ok_or_else(stopped)?;
        elsewhere(|| runtime.block_on(self.shared.with_frames(&frames, async { work() })))?
    }
}

/// Does `work` on another thread. This one may be in the runtime of the owner's library, which does not enter it twice,
/// or hold the interpreter's lock.
fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let working = scope.spawn(work);
        let ended = Python::try_attach(|py| py.detach(|| working.join()));
        let ended = ended.ok_or_else(stopped)?;
        ended.map_err(|_| exec_datafusion_err!("planning panicked"))
    })
}

fn stopped() -> DataFusionError {
    exec_datafusion_err!("the Python interpreter is shutting down")
}
