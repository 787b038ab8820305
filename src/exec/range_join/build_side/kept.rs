//! Build sides that the session keeps for later queries: those over tables in memory and Parquet files, sorted and
//! indexed on the CPU.
//!
//! A later join finds one if what is scanned has the same version, and it reads the same columns of the same rows by
//! the same keys. Indexes that only some queries justify are built in it when they do, and then are there for all.
//!
//! Not kept are build sides in which rows are marked, parts of a divided one, and any where the memory pool has a
//! limit: other operators could not get that memory back.

use std::any::Any;
use std::sync::Arc;
use std::time::SystemTime;

use arrow::datatypes::DataType;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::common::options::{ByteSize, RmqOptions};
use crate::exec::common::plan_key::{PlanKey, Scans, is_repeatable};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::row_threshold::RowThreshold;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::index::catalog::{IndexCatalog, KeptRows, SessionCatalog};
use crate::index::version::Version;
use rmq_engine::Comparison;

/// Where a build side is looked for, and kept when it is built.
#[derive(Debug)]
pub(crate) struct BuildSideKeeper {
    catalog: Arc<IndexCatalog>,
    limit: ByteSize,
    key: Arc<BuildSideKey>,
    /// The plan of the rows.
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    version: Version,
    /// The time before the version was requested.
    requested: SystemTime,
}

/// What tells a build side from others over the same version of its tables.
#[derive(Debug, PartialEq)]
struct BuildSideKey {
    plan: PlanKey,
    columns: BuildColumns,
    /// The value that is compared with thresholds, for which there is one index.
    threshold: Option<(PhysicalExprRef, Comparison)>,
}

#[derive(Debug)]
struct KeptBuildSide {
    key: Arc<BuildSideKey>,
    /// The keys as EXPLAIN shows them.
    label: String,
    /// The type of the range key.
    key_type: DataType,
    side: Arc<BuildSide>,
    memory: Arc<RetainingPool>,
}

impl BuildSideKeeper {
    /// Of the build side of these columns of a plan. `None` if it is not to be kept.
    pub(crate) async fn of(
        plan: &Arc<dyn ExecutionPlan>,
        columns: &BuildColumns,
        threshold: Option<&RowThreshold>,
        context: &Arc<TaskContext>,
    ) -> Option<Self> {
        let options = RmqOptions::of(context.session_config().options());
        let is_limited = !matches!(context.memory_pool().memory_limit(), MemoryLimit::Infinite);
        if !options.keep_indexes || is_limited || columns.marks_rows {
            return None;
        }
        let of_threshold = threshold.map(|threshold| &threshold.value);
        let mut expressions = columns.expressions().iter().chain(of_threshold);
        if !expressions.all(|expr| is_repeatable(expr.as_ref())) {
            return None;
        }
        let catalog = SessionCatalog::of(context.session_config())?;
        let (plan_key, scans) = PlanKey::of(plan)?;
        let requested = SystemTime::now();
        let version = version(&scans, context).await?;
        let key = BuildSideKey {
            plan: plan_key,
            columns: columns.clone().without_bounds(),
            threshold: threshold.map(|t| (Arc::clone(&t.value), t.comparison)),
        };
        Some(Self {
            catalog,
            limit: options.index_memory_limit,
            key: Arc::new(key),
            plan: Arc::clone(plan),
            context: Arc::clone(context),
            version,
            requested,
        })
    }

    /// The build side, if it is kept.
    pub(crate) fn find(&self) -> Option<Arc<BuildSide>> {
        let kept = self.catalog.find_rows(&self.version, |rows| {
            KeptBuildSide::of(rows).is_some_and(|kept| kept.key == self.key)
        })?;
        // Indexes that queries have justified since it was kept take memory, too.
        self.catalog.shrink_to(self.limit);
        Some(Arc::clone(&KeptBuildSide::of(kept.as_ref())?.side))
    }

    /// Keeps a build side, whose memory is granted by this pool, unless a file has changed or may have while it was
    /// read.
    pub(crate) async fn keep(&self, side: &Arc<BuildSide>, memory: &Arc<RetainingPool>) {
        if self.version.has_files() {
            if !self.version.is_settled_at(self.requested) {
                return;
            }
            let now = version(&Scans::of(&self.plan), &self.context).await;
            if !now.is_some_and(|now| now.matches(&self.version)) {
                return;
            }
        }
        let columns = &self.key.columns;
        let range_key = columns.range_key(columns.expressions());
        let Ok(key_type) = range_key.data_type(&self.plan.schema()) else {
            return;
        };
        let kept = KeptBuildSide {
            key: Arc::clone(&self.key),
            label: columns.key_label(),
            key_type,
            side: Arc::clone(side),
            memory: Arc::clone(memory),
        };
        let version = self.version.clone();
        self.catalog.keep_rows(Arc::new(kept), version, self.limit);
    }
}

/// The version of what is scanned, if it can be told. That a file is gone is for its scan to say.
async fn version(scans: &Scans<'_>, context: &TaskContext) -> Option<Version> {
    let version = scans.version("of a range join", context).await;
    version.unwrap_or_else(|error| {
        log::debug!("the rows of a range join are not kept: {error}");
        None
    })
}

impl KeptBuildSide {
    fn of(rows: &dyn KeptRows) -> Option<&Self> {
        (rows as &dyn Any).downcast_ref()
    }
}

impl KeptRows for KeptBuildSide {
    fn is_of_same_use(&self, other: &dyn KeptRows) -> bool {
        Self::of(other).is_some_and(|other| {
            let (key, other) = (&self.key, &other.key);
            key.plan.is_of_same_plan(&other.plan)
                && (&key.columns, &key.threshold) == (&other.columns, &other.threshold)
        })
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn key_type(&self) -> &DataType {
        &self.key_type
    }

    fn rows(&self) -> usize {
        self.side.total_rows
    }

    fn bytes(&self) -> usize {
        self.memory.granted_bytes() + self.side.threshold_index.bytes()
    }
}
