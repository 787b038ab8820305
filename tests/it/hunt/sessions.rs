//! Sessions with options drawn at random.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::dataframe::DataFrame;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use rmq_testing::Random;

use crate::fake::Fake;
use crate::support::set;

/// The options, and the values that are drawn.
const OPTIONS: &[(&str, &[&str])] = &[
    (
        "datafusion.execution.target_partitions",
        &["1", "2", "3", "4", "7", "16"],
    ),
    ("datafusion.execution.batch_size", &["1", "2", "3", "16"]),
    ("datafusion.execution.coalesce_batches", &["false"]),
    ("datafusion.execution.collect_statistics", &["false"]),
    (
        "datafusion.execution.enforce_batch_size_in_joins",
        &["true"],
    ),
    (
        "datafusion.execution.hash_join_buffering_capacity",
        &["1000"],
    ),
    ("datafusion.execution.parquet.pushdown_filters", &["true"]),
    (
        "datafusion.execution.parquet.schema_force_view_types",
        &["false"],
    ),
    (
        "datafusion.execution.perfect_hash_join_small_build_threshold",
        &["0"],
    ),
    (
        "datafusion.execution.use_row_number_estimates_to_optimize_partitioning",
        &["true"],
    ),
    (
        "datafusion.sql_parser.enable_subquery_sort_elimination",
        &["false"],
    ),
    ("datafusion.optimizer.prefer_hash_join", &["false"]),
    (
        "datafusion.optimizer.enable_piecewise_merge_join",
        &["true"],
    ),
    ("datafusion.optimizer.repartition_joins", &["false"]),
    ("datafusion.optimizer.repartition_aggregations", &["false"]),
    ("datafusion.optimizer.repartition_windows", &["false"]),
    ("datafusion.optimizer.repartition_sorts", &["false"]),
    ("datafusion.optimizer.prefer_existing_sort", &["true"]),
    ("datafusion.optimizer.prefer_existing_union", &["true"]),
    (
        "datafusion.optimizer.enable_round_robin_repartition",
        &["false"],
    ),
    ("datafusion.optimizer.enable_topk_aggregation", &["false"]),
    ("datafusion.optimizer.enable_topk_repartition", &["false"]),
    (
        "datafusion.optimizer.enable_topk_dynamic_filter_pushdown",
        &["false"],
    ),
    (
        "datafusion.optimizer.enable_join_dynamic_filter_pushdown",
        &["false"],
    ),
    (
        "datafusion.optimizer.enable_aggregate_dynamic_filter_pushdown",
        &["false"],
    ),
    (
        "datafusion.optimizer.enable_dynamic_filter_pushdown",
        &["false"],
    ),
    (
        "datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery",
        &["false"],
    ),
    ("datafusion.optimizer.enable_sort_pushdown", &["false"]),
    (
        "datafusion.optimizer.enable_leaf_expression_pushdown",
        &["false"],
    ),
    ("datafusion.optimizer.enable_unions_to_filter", &["true"]),
    ("datafusion.optimizer.enable_window_topn", &["true"]),
    ("datafusion.optimizer.filter_null_join_keys", &["true"]),
    ("datafusion.optimizer.join_reordering", &["false"]),
    (
        "datafusion.optimizer.top_down_join_key_reordering",
        &["false"],
    ),
    ("datafusion.optimizer.use_statistics_registry", &["true"]),
    ("datafusion.optimizer.subset_repartition_threshold", &["1"]),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold",
        &["0"],
    ),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold_rows",
        &["0"],
    ),
    (
        "datafusion.optimizer.hash_join_inlist_pushdown_max_size",
        &["0"],
    ),
    (
        "datafusion.optimizer.default_filter_selectivity",
        &["1", "100"],
    ),
    ("datafusion.optimizer.max_passes", &["1", "5"]),
    ("rmq.range_joins", &["always", "always", "never"]),
    ("rmq.join_mode", &["partitioned", "collected", "shared"]),
    ("rmq.build_threads", &["1", "3"]),
    ("rmq.keep_indexes", &["false"]),
];

/// What a session is made of.
#[derive(Debug, Clone)]
pub struct Session {
    pub options: Vec<(&'static str, &'static str)>,
    devices: Option<bool>,
    memory: Option<usize>,
    is_plain: bool,
    /// Whether statements are read by `datafusion_rmq::sql`, as the shell and Python do.
    reads_sql: bool,
}

/// Whether a statement has a join that `DataFusion` alone does not read.
pub fn has_own_joins(sql: &str) -> bool {
    sql.contains(" ASOF ") || has_known_joins(sql)
}

/// Whether a statement has a join that only `datafusion_rmq::sql` reads.
fn has_known_joins(sql: &str) -> bool {
    datafusion_rmq::parts::with_known_joins(sql, &GenericDialect {}).is_some()
}

impl Session {
    pub fn draw(random: &mut Random) -> Self {
        // Few options, or many.
        let rate = [0, 10, 30, 60][random.below(4)];
        let mut options = vec![];
        for (name, values) in OPTIONS {
            let value = values[random.below(values.len())];
            if random.below(100) < rate {
                options.push((*name, value));
            }
        }
        if random.below(2) == 0 && !options.iter().any(|o| o.0 == "rmq.range_joins") {
            options.push(("rmq.range_joins", "always"));
        }
        // Drawn beside the others, so that cases of earlier seeds stay the same.
        let beside = &mut random.clone();
        beside.next();
        if beside.below(2) == 0 {
            options.push(("rmq.pruning", "always"));
        }
        let reads_sql = beside.below(2) == 0;
        let devices = (random.below(5) == 0).then(|| random.below(2) == 0);
        let memory = (random.below(12) == 0).then(|| [20_000, 100_000, 1_000_000][random.below(3)]);
        Self {
            options,
            devices,
            memory,
            is_plain: false,
            reads_sql,
        }
    }

    /// The same session without the extension, and with enough memory.
    pub fn plain(&self) -> Self {
        let mut plain = Self {
            is_plain: true,
            devices: None,
            memory: None,
            ..self.clone()
        };
        plain.options.retain(|(name, _)| !name.starts_with("rmq."));
        plain
    }

    /// The same session with the extension's functions and without its rules.
    pub fn without_rules(&self) -> Self {
        let mut session = Self {
            is_plain: false,
            ..self.plain()
        };
        session.options.push(("rmq.rewrite", "false"));
        session
    }

    /// Plans a statement, and runs it if it is no query.
    pub async fn plan(&self, ctx: &SessionContext, sql: &str) -> Result<DataFrame> {
        let reads_sql = self.reads_sql || has_known_joins(sql);
        if reads_sql && !self.is_plain {
            datafusion_rmq::sql(ctx, sql).await
        } else {
            ctx.sql(sql).await
        }
    }

    /// A session with the extension, unless it is plain.
    pub fn open(&self) -> SessionContext {
        let config = SessionConfig::new().with_target_partitions(4);
        let mut runtime = RuntimeEnvBuilder::new();
        if let Some(bytes) = self.memory {
            runtime = runtime.with_memory_pool(Arc::new(GreedyMemoryPool::new(bytes)));
        }
        let runtime = runtime.build_arc().expect("a runtime");
        let ctx = SessionContext::new_with_config_rt(config, runtime);
        match self.devices {
            Some(joins) => {
                let fake = Arc::new(Fake {
                    joins,
                    ..Fake::default()
                });
                fake.register(ctx.clone(), &[("rmq.engine", "cuda")]);
            }
            None if self.is_plain => {}
            None => datafusion_rmq::register(&ctx),
        }
        for (name, value) in &self.options {
            set(&ctx, name, value);
        }
        ctx
    }

    /// Simpler sessions, one step away.
    pub fn simpler(&self) -> Vec<Self> {
        let mut simpler = vec![];
        for n in 0..self.options.len() {
            let mut less = self.clone();
            less.options.remove(n);
            simpler.push(less);
        }
        if self.options.len() > 3 {
            simpler.insert(
                0,
                Self {
                    options: vec![],
                    ..self.clone()
                },
            );
        }
        if self.devices.is_some() {
            simpler.push(Self {
                devices: None,
                ..self.clone()
            });
        }
        if self.reads_sql {
            simpler.push(Self {
                reads_sql: false,
                ..self.clone()
            });
        }
        if self.memory.is_some() {
            simpler.push(Self {
                memory: None,
                ..self.clone()
            });
        }
        simpler
    }

    /// The statements that set the options.
    pub fn sql(&self) -> String {
        let mut sql = String::from("SET datafusion.execution.target_partitions = 4;\n");
        for (name, value) in &self.options {
            sql += &format!("SET {name} = '{value}';\n");
        }
        if let Some(joins) = self.devices {
            sql += &format!("-- on devices that are threads, joins: {joins}\n");
        }
        if self.reads_sql {
            sql += "-- read by datafusion_rmq::sql\n";
        }
        if let Some(bytes) = self.memory {
            sql += &format!("-- with {bytes} bytes of memory\n");
        }
        sql
    }
}
