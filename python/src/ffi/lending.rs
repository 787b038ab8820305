//! How the library asks the owner for tables while a statement of the owner is planned.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use datafusion::common::{DataFusionError, Result, TableReference, exec_datafusion_err, plan_err};
use pyo3::prelude::*;

use crate::ffi::lent_table::LentTable;
use crate::runtime::handle;
use crate::shared::{Frames, Shared};
use crate::table_names::Names;

/// Threads that ask for tables at a time. A view that reads itself would begin one after another.
const MOST: usize = 200;

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
        let of_tables = |name: &&TableReference| name.schema() == Some("information_schema");
        if let Some(name) = names.iter().find(of_tables) {
            return plan_err!(
                "{name}: the texts of range functions know the tables of a session, but not its information_schema; \
                 create a table from it"
            );
        }
        let names: Vec<_> = names.into_iter().map(|name| name.to_vec()).collect();
        let lent = || {
            Python::try_attach(|py| {
                let lent = self.lend.bind(py).call1((names,))?;
                let lent: Vec<(Vec<String>, PyRef<'_, LentTable>)> = lent.extract()?;
                let frames = lent.into_iter().map(|(name, table)| table.frames(name));
                Ok(frames
                    .collect::<Result<Vec<_>>>()
                    .map(|frames| frames.concat()))
            })
        };
        let lent: PyResult<Result<Frames>> = elsewhere(lent)?.ok_or_else(stopped)?;
        lent.map_err(|error| DataFusionError::External(Box::new(error)))?
    }

    /// Does `work` with these tables of the owner.
    pub fn with_frames<T: Send>(
        &self,
        frames: &Frames,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let runtime = Python::try_attach(handle).and_then(Result::ok);
        let runtime = runtime.ok_or_else(stopped)?;
        elsewhere(|| runtime.block_on(self.shared.with_frames(frames, async { work() })))?
    }
}

/// Does `work` on another thread. This one may be in the runtime of the owner's library, which does not enter it twice,
/// or hold the interpreter's lock.
fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let _working = Working::try_new()?;
    thread::scope(|scope| {
        let working = scope.spawn(work);
        let ended = Python::try_attach(|py| py.detach(|| working.join()));
        let ended = ended.ok_or_else(stopped)?;
        ended.map_err(|_| exec_datafusion_err!("planning panicked"))
    })
}

/// One of the threads of [`elsewhere`].
struct Working;

static WORKING: AtomicUsize = AtomicUsize::new(0);

impl Working {
    fn try_new() -> Result<Self> {
        let working = Self;
        if WORKING.fetch_add(1, Ordering::Relaxed) >= MOST {
            return plan_err!(
                "views whose range functions name views nest too deeply; does one read itself?"
            );
        }
        Ok(working)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn stopped() -> DataFusionError {
    exec_datafusion_err!("the Python interpreter is shutting down")
}
