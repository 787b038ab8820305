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
        let writer = Writer {
            disk: Arc::clone(self),
            is_written: false,
        };
        tokio::task::spawn_blocking(move || {
            let written = write();
            if let Err(error) = &written {
                log::warn!("{what} is not written to rmq.index_directory = '{directory}': {error}");
            }
            writer.end(written.is_ok());
        });
    }

    /// Whether it is being written.
    pub(crate) fn is_writing(&self) -> bool {
        self.state().threads > 0
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

/// A thread that writes, until it ends: with a result, or with a panic.
struct Writer {
    disk: Arc<OnDisk>,
    is_written: bool,
}

impl Writer {
    fn end(mut self, is_written: bool) {
        self.is_written = is_written;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        state.threads -= 1;
        if !self.is_written {
            state.label = Some("failed");
        } else if state.label.is_none() {
            state.label = Some("written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_writer_that_panics_has_failed() {
        let disk = Arc::new(OnDisk::default());
        disk.spawn("a".into(), "d".into(), || panic!("a test's"));
        while disk.is_writing() {
            tokio::task::yield_now().await;
        }
        assert_eq!(disk.label(), Some("failed"));
        let disk = Arc::new(OnDisk::default());
        disk.spawn("a".into(), "d".into(), || Ok(()));
        while disk.is_writing() {
            tokio::task::yield_now().await;
        }
        assert_eq!(disk.label(), Some("written"));
    }
}
