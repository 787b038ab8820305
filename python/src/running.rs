//! A running query as a reader of record batches, for consumers of Arrow streams.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use futures::{StreamExt, future};
use pyo3::prelude::*;
use tokio::sync::{Mutex, watch};

use crate::runtime::run;

/// Becomes true when a query is to stop.
pub type Cancelled = watch::Receiver<bool>;

/// Does `work` unless it is cancelled before it is done.
pub async fn unless_cancelled<T>(
    mut cancelled: Cancelled,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let stop = async {
        // Nobody can cancel any more if it fails.
        if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
            future::pending::<()>().await;
        }
    };
    tokio::select! {
        done = work => done,
        () = stop => exec_err!("the statement was cancelled"),
    }
}

/// A running query.
pub struct Running {
    schema: SchemaRef,
    /// None after an error, so that the query does not run on.
    stream: Arc<Mutex<Option<SendableRecordBatchStream>>>,
    cancelled: Option<Cancelled>,
}

impl Running {
    pub fn new(
        schema: SchemaRef,
        stream: SendableRecordBatchStream,
        cancelled: Option<Cancelled>,
    ) -> Self {
        Self {
            schema,
            stream: Arc::new(Mutex::new(Some(stream))),
            cancelled,
        }
    }
}

impl Iterator for Running {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (stream, cancelled) = (Arc::clone(&self.stream), self.cancelled.clone());
        let next = async move {
            let mut stream = stream.lock().await;
            let Some(running) = stream.as_mut() else {
                return Ok(None);
            };
            let next = async { running.next().await.transpose() };
            let next = match cancelled {
                Some(cancelled) => unless_cancelled(cancelled, next).await,
                None => next.await,
            };
            if next.is_err() {
                *stream = None;
            }
            next
        };
        // The reader of the stream may hold the interpreter's lock, which buffers of Python objects need when they are
        // dropped. `run` releases it.
        let Some(next) = Python::try_attach(|py| run(py, next)) else {
            let text = "the Python interpreter is shutting down".to_string();
            return Some(Err(ArrowError::CDataInterface(text)));
        };
        let next = next.map_err(|error| ArrowError::ExternalError(Box::new(error)));
        next.transpose()
    }
}

impl RecordBatchReader for Running {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
