//! Whether something that is kept, or what it is made of, is in files of `rmq.index_directory`, too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::Result;

/// Whether something is in files of `rmq.index_directory`.
#[derive(Debug, Default)]
pub(crate) struct OnDisk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The threads that write.
    threads: usize,
    label: Option<&'static str>,
}

impl OnDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned state is complete: no update of it can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was read from files.
    pub(crate) fn set_loaded(&self) {
        self.state().label = Some("loaded");
    }

    /// Writes it to this directory, on a thread of its own that nothing waits for. A failure is logged, with `what` it
    /// is.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        what: String,
        directory: String,
        write: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        self.state().threads += 1;
        let this = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let written = write();
            if let Err(error) = &written {
                log::warn!("{what} is not written to rmq.index_directory = '{directory}': {error}");
            }
            this.end(written.is_ok());
        });
    }

    /// Whether it is being written.
    pub(crate) fn is_writing(&self) -> bool {
        self.state().threads > 0
    }

    /// A thread has ended.
    fn end(&self, is_written: bool) {
        let mut state = self.state();
        state.threads -= 1;
        if !is_written {
            state.label = Some("failed");
        } else if state.label.is_none() {
            state.label = Some("written");
        }
    }

    /// The word for it in `rmq_indexes()`.
    pub(crate) fn label(&self) -> Option<&'static str> {
        let state = self.state();
        if state.threads > 0 {
            Some("writing")
        } else {
            state.label
        }
    }
}
