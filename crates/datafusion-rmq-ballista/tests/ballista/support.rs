//! Schedulers and executors on loopback, and tables in files that they read.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use ballista_core::ConfigProducer;
use ballista_core::serde::BallistaCodec;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_executor::health::ExecutorHealth;
use ballista_executor::new_standalone_executor_from_builder;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use ballista_scheduler::standalone::new_standalone_scheduler_with_builder;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_ballista::{
    client, codec, executor_config, functions, physical_codec, scheduler_config, scheduler_session,
};
use datafusion_rmq_proto::RmqCodec;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The address of a scheduler with three executors, which live as long as the process.
pub static CLUSTER: LazyLock<String> = LazyLock::new(|| start(vec![Settings::default(); 3]));

/// How an executor is set up.
#[derive(Clone, Default)]
pub struct Settings {
    pub options: RmqOptions,
    /// The memory for its queries in bytes, if there is a limit.
    pub memory: Option<usize>,
}

impl Settings {
    pub fn runtime(&self) -> Arc<RuntimeEnv> {
        let mut runtime = RuntimeEnvBuilder::new();
        if let Some(bytes) = self.memory {
            runtime = runtime.with_memory_pool(Arc::new(FairSpillPool::new(bytes)));
        }
        runtime.build_arc().expect("a runtime")
    }
}

/// Starts a scheduler and executors, each for one task at a time, and returns the scheduler's address. They live as
/// long as the process.
pub fn start(executors: Vec<Settings>) -> String {
    let [of_scheduler, of_executors] = [(); 2].map(|()| codec(&RmqCodec::default()));
    start_with(of_scheduler, &of_executors, executors)
}

/// The same with these codecs.
pub fn start_with(
    of_scheduler: BallistaCodec,
    of_executors: &BallistaCodec,
    executors: Vec<Settings>,
) -> String {
    let of_executors = of_executors.clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let scheduler = new_standalone_scheduler_with_builder(
                Arc::new(|config| scheduler_session(config, &RmqCodec::default())),
                Arc::new(scheduler_config),
                of_scheduler,
            );
            let address = scheduler.await.expect("a scheduler");
            let address = format!("http://localhost:{}", address.port());
            for settings in executors {
                let (options, runtime) = (settings.options.clone(), settings.runtime());
                let scheduler = SchedulerGrpcClient::connect(address.clone());
                let started = new_standalone_executor_from_builder(
                    scheduler.await.expect("the scheduler"),
                    1,
                    Arc::new(move || executor_config(&options)),
                    Arc::new(move |_| Ok(Arc::clone(&runtime))),
                    of_executors.clone(),
                    functions(&RmqCodec::default()).expect("functions"),
                );
                started.await.expect("an executor");
            }
            sender.send(address).expect("a receiver");
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().expect("a cluster")
}

/// Starts a scheduler as a process does, on threads of its own, and returns its port. It pushes tasks to executors, and
/// notices in some seconds, instead of minutes, that one is gone.
pub fn start_scheduler() -> u16 {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let codec = RmqCodec::default();
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let config = SchedulerConfig {
                // Executors report tasks there.
                external_host: "127.0.0.1".into(),
                bind_port: port,
                override_physical_codec: Some(physical_codec(&codec)),
                override_session_builder: Some(Arc::new(move |config| {
                    scheduler_session(config, &codec)
                })),
                override_config_producer: Some(Arc::new(scheduler_config)),
                executor_timeout_seconds: 5,
                expire_dead_executor_interval_seconds: 1,
                no_executors_grace_period_seconds: 5,
                ..SchedulerConfig::default()
            };
            let cluster = BallistaCluster::new_from_config(&config).await;
            let cluster = cluster.expect("a cluster");
            let scheduler =
                create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config));
            let scheduler = scheduler.await.expect("a scheduler");
            sender.send(port).expect("a receiver");
            let served = start_grpc_service_with_listener(listener, scheduler).await;
            served.expect("a scheduler");
        });
    });
    receiver.recv().expect("a scheduler")
}

/// An executor as in a process of its own, on threads of its own, which dies when this is dropped.
pub struct Executor {
    pub runtime: Arc<RuntimeEnv>,
    /// The options of each of its tasks so far.
    pub tasks: Arc<Mutex<Vec<RmqOptions>>>,
    folder: Arc<TempDir>,
    _alive: oneshot::Sender<()>,
}

impl Executor {
    /// Starts one, which begins tasks with this configuration, and waits until the scheduler knows it.
    pub async fn start(scheduler: u16, config: ConfigProducer, runtime: Arc<RuntimeEnv>) -> Self {
        let folder = Arc::new(TempDir::new().expect("a folder"));
        let tasks = Arc::<Mutex<Vec<RmqOptions>>>::default();
        let health = ExecutorHealth::new();
        let codec = RmqCodec::default();
        let (seen, of_tasks) = (Arc::clone(&tasks), Arc::clone(&runtime));
        let (port, grpc_port) = (free_port(), free_port());
        let process = ExecutorProcessConfig {
            override_function_registry: Some(Arc::new(functions(&codec).expect("functions"))),
            override_physical_codec: Some(physical_codec(&codec)),
            override_config_producer: Some(config),
            override_runtime_producer: Some(Arc::new(move |config| {
                let options = RmqOptions::of(config.options());
                seen.lock().expect("no panic").push(options);
                Ok(Arc::clone(&of_tasks))
            })),
            // The runtime is asked for by each task, and is left as it is.
            session_runtime_cache_capacity: 0,
            memory_pool_size: Some(0),
            work_dir: Some(folder.path().to_string_lossy().into_owned()),
            scheduler_host: "127.0.0.1".into(),
            scheduler_port: scheduler,
            executor_heartbeat_interval_seconds: 1,
            port,
            grpc_port,
            vcores: 1,
            health: health.clone(),
            ..ExecutorProcessConfig::default()
        };
        let (alive, dead) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    ended = start_executor_process(Arc::new(process)) => {
                        eprintln!("an executor has ended: {ended:?}");
                    }
                    _ = dead => {}
                }
            });
            // Its connections and tasks end where they are.
            runtime.shutdown_background();
        });
        while !health.is_ready() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self {
            runtime,
            tasks,
            folder,
            _alive: alive,
        }
    }

    /// The number of tasks so far.
    pub fn count(&self) -> usize {
        self.tasks.lock().expect("no panic").len()
    }

    /// The folders of the jobs whose rows it has.
    pub fn jobs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn session_config(partitions: usize) -> SessionConfig {
    SessionConfig::new()
        .with_information_schema(true)
        .with_target_partitions(partitions)
}

/// A session whose queries run on the executors of a scheduler, with range joins in this mode.
pub fn on_executors(scheduler: &str, mode: JoinModeChoice) -> SessionContext {
    on_executors_in(3, scheduler, mode)
}

/// The same with this number of partitions.
pub fn on_executors_in(partitions: usize, scheduler: &str, mode: JoinModeChoice) -> SessionContext {
    let mut options = RmqOptions::default();
    options.join_mode = mode;
    let config = session_config(partitions).with_option_extension(options);
    let builder = SessionStateBuilder::new_with_default_features().with_config(config);
    let builder = client(builder, scheduler, &RmqCodec::default());
    SessionContext::new_with_state(builder.build())
}

/// A session of one node.
pub fn local() -> SessionContext {
    let builder = SessionStateBuilder::new_with_default_features().with_config(session_config(3));
    SessionContext::new_with_state(builder.with_rmq().build())
}
