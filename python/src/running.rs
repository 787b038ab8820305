//! A running query as a reader of record batches, for consumers of Arrow streams.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::{Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion_rmq::parts::Stop;
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

/// Ends joins that do not look up, once the query is cancelled.
pub fn stop_of(mut cancelled: Cancelled) -> Stop {
    let stop = Stop::default();
    let requested = stop.clone();
    tokio::spawn(async move {
        if cancelled.wait_for(|cancelled| *cancelled).await.is_ok() {
            requested.request();
        }
    });
    stop
}

/// A running query.
pub struct Running {
    schema: SchemaRef,
    /// None after an error, so that the query does not run on.
    stream: Arc<Mutex<Option<SendableRecordBatchStream>>>,
    /// Ends joins that do not look up, once no more rows are read.
    stop: Stop,
    cancelled: Option<Cancelled>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.request();
    }
}

impl Running {
    pub fn new(
        schema: SchemaRef,
        stream: SendableRecordBatchStream,
        stop: Stop,
        cancelled: Option<Cancelled>,
    ) -> Self {
        Self {
            schema,
            stream: Arc::new(Mutex::new(Some(stream))),
            stop,
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
        let next = next.inspect_err(|_| self.stop.request());
        let next = next.map_err(|error| ArrowError::ExternalError(Box::new(error)));
        next.transpose()
    }
}

impl RecordBatchReader for Running {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
