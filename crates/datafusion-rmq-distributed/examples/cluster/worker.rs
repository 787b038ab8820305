//! A worker.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use datafusion::error::Result;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion_rmq::{ByteSize, RmqOptions};
use datafusion_rmq_proto::RmqCodec;
use tokio::net::TcpListener;

#[derive(Args)]
pub struct Worker {
    /// Address to listen on. Anyone who can reach it can read files as this process
    #[arg(long, default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
    /// Threads; 0 for all cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Memory for queries, such as 4G; unlimited if not given
    #[arg(long)]
    memory: Option<ByteSize>,
    /// Build indexes and sorted sides anew for each query
    #[arg(long)]
    forget: bool,
}

impl Worker {
    pub async fn run(self) -> Result<()> {
        let mut options = RmqOptions::default();
        options.keep_indexes = !self.forget;
        options.build_threads = self.threads;
        let worker = datafusion_rmq_distributed::worker(&RmqCodec::default(), &options);
        let mut runtime = RuntimeEnvBuilder::new();
        if let Some(ByteSize(bytes)) = self.memory {
            runtime = runtime.with_memory_pool(Arc::new(FairSpillPool::new(bytes)));
        }
        let worker = worker.with_runtime_env(runtime.build_arc()?);
        let listener = TcpListener::bind(self.listen).await?;
        println!("http://{}", listener.local_addr()?);
        datafusion_rmq_distributed::serve(worker, listener).await
    }
}
