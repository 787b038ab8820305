//! Workers on loopback, and tables in files that they read.

use std::sync::LazyLock;

use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, Worker, WorkerResolver};
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_distributed::{client, serve, worker};
use datafusion_rmq_proto::RmqCodec;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use url::Url;

pub use crate::files::{lines, move_to, move_to_files, run};

/// The addresses of workers.
#[derive(Clone)]
pub struct Workers(Vec<Url>);

impl Workers {
    pub fn new(addresses: Vec<Url>) -> Self {
        Self(addresses)
    }

    /// The first of them.
    pub fn first(&self, number: usize) -> Self {
        Self(self.0[..number].to_vec())
    }
}

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.0.clone())
    }
}

/// Three workers that live as long as the process, on threads of their own.
pub static CLUSTER: LazyLock<Workers> = LazyLock::new(|| {
    let workers = (0..3).map(|_| worker(&RmqCodec::default(), &RmqOptions::default()));
    Workers(workers.map(start).collect())
});

/// Starts a worker, which lives as long as the process, and returns its address.
pub fn start(worker: Worker) -> Url {
    let started = Started::new(worker);
    let address = started.address.clone();
    std::mem::forget(started);
    address
}

/// A worker on threads of its own, which dies when this is dropped.
pub struct Started {
    pub address: Url,
    pub runtime: Handle,
    _alive: oneshot::Sender<()>,
}

impl Started {
    pub fn new(worker: Worker) -> Self {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (alive, dead) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let handle = runtime.handle().clone();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let address = listener.local_addr().expect("an address");
                sender.send((address, handle)).expect("a receiver");
                tokio::select! {
                    _ = serve(worker, listener) => {}
                    _ = dead => {}
                }
            });
            // Its connections and queries end where they are.
            runtime.shutdown_background();
        });
        let (address, runtime) = receiver.recv().expect("a worker");
        Self {
            address: Url::parse(&format!("http://{address}")).expect("an address"),
            runtime,
            _alive: alive,
        }
    }
}

fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new()
        .with_information_schema(true)
        .with_target_partitions(partitions)
}

/// A session whose queries run on workers at these addresses, with range joins in this mode.
pub fn distributed(workers: Workers, mode: JoinModeChoice) -> SessionContext {
    distributed_in(3, workers, mode)
}

/// The same with this number of partitions in each task.
pub fn distributed_in(partitions: usize, workers: Workers, mode: JoinModeChoice) -> SessionContext {
    distributed_with(partitions, workers, mode, 64 << 20)
}

/// The same with this limit in bytes of searched sides that each task has.
pub fn distributed_with(
    partitions: usize,
    workers: Workers,
    mode: JoinModeChoice,
    broadcast_limit: usize,
) -> SessionContext {
    let mut options = RmqOptions::default();
    options.join_mode = mode;
    let builder = SessionStateBuilder::new_with_default_features()
        .with_config(config(partitions).with_option_extension(options));
    let builder = client(builder, workers, &RmqCodec::default(), broadcast_limit);
    // Else small files are read by one task.
    let builder = builder.with_distributed_file_scan_config_bytes_per_partition(1);
    SessionContext::new_with_state(builder.expect("an option").build())
}

/// A session of one node.
pub fn local() -> SessionContext {
    local_in(3)
}

/// The same with this number of partitions.
pub fn local_in(partitions: usize) -> SessionContext {
    let builder = SessionStateBuilder::new_with_default_features().with_config(config(partitions));
    SessionContext::new_with_state(builder.with_rmq().build())
}
