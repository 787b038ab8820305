//! Scans of tables in memory, which the plans of several queries share while a table has the same batches.
//!
//! Each scan that DataFusion plans of such a table copies the list of its batches twice, and drops a copy: 13 of the 21
//! ms that it takes to plan a query over a kept side of 13,000 batches. To compare addresses takes less than one.
//!
//! A scan holds the arrays of its batches. So it is dropped as soon as the table is seen to be gone or to have others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arrow::array::{Array, RecordBatch};
use datafusion::catalog::{MemTable, ScanArgs, Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::logical_expr::SortExpr;
use datafusion::physical_plan::ExecutionPlan;

/// The most scans that are shared; the one that was planned first is dropped.
const MAX_SCANS: usize = 32;

/// The scans of a session, or of several that share what they keep.
#[derive(Debug, Default)]
pub(crate) struct MemoryScans(Mutex<Vec<MemoryScan>>);

/// A scan of a table.
#[derive(Debug, Clone)]
struct MemoryScan {
    table: Weak<dyn TableProvider>,
    form: Form,
    plan: Arc<dyn ExecutionPlan>,
    /// The addresses of the arrays of each batch in each partition, and the number of its rows. No other array can have
    /// one of these, as the plan holds them all.
    batches: Arc<[Vec<usize>]>,
}

/// What a plan is made of, besides the table's batches.
#[derive(Debug, Clone, PartialEq)]
struct Form {
    columns: Option<Vec<usize>>,
    sort_order: Vec<Vec<SortExpr>>,
    show_sizes: bool,
}

impl MemoryScans {
    /// The plan of a scan of `table`, which is in memory.
    ///
    /// # Errors
    /// Those of the table.
    pub(crate) async fn scan(
        &self,
        table: &Arc<dyn TableProvider>,
        memory: &MemTable,
        session: &dyn Session,
        args: ScanArgs<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let form = Form {
            columns: args.projection().map(<[usize]>::to_vec),
            sort_order: memory.sort_order.lock().clone(),
            show_sizes: session.config_options().explain.show_sizes,
        };
        let is_known = |scan: &MemoryScan| scan.is_of(table) && scan.form == form;
        let known = self.lock().iter().find(|scan| is_known(scan)).cloned();
        if let Some(known) = known {
            if known.has_batches_of(memory).await {
                return Ok(known.plan);
            }
            self.drop_where(is_known);
        }
        let plan = table.scan_with_args(session, args).await?.into_inner();
        if let Some(batches) = batches(&plan) {
            let scan = MemoryScan {
                table: Arc::downgrade(table),
                form,
                plan: Arc::clone(&plan),
                batches,
            };
            let mut scans = self.lock();
            let oldest = (scans.len() == MAX_SCANS).then(|| scans.remove(0));
            scans.push(scan);
            drop(scans);
            // Memory is freed without the lock.
            drop(oldest);
        }
        Ok(plan)
    }

    /// Drops scans of tables that are gone, or have visibly other batches.
    pub(crate) fn drop_dead(&self) {
        self.drop_where(|scan| !scan.may_be_alive());
    }

    /// Drops all scans.
    pub(crate) fn clear(&self) {
        self.drop_where(|_| true);
    }

    fn drop_where(&self, is_dropped: impl Fn(&MemoryScan) -> bool) {
        let mut scans = self.lock();
        let dropped: Vec<_> = scans.extract_if(.., |scan| is_dropped(scan)).collect();
        drop(scans);
        drop(dropped);
    }

    /// A poisoned lock is safe to use: no panic leaves the list incomplete.
    fn lock(&self) -> MutexGuard<'_, Vec<MemoryScan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryScan {
    fn is_of(&self, table: &Arc<dyn TableProvider>) -> bool {
        std::ptr::addr_eq(self.table.as_ptr(), Arc::as_ptr(table))
    }

    /// Whether the table has the batches of this scan.
    async fn has_batches_of(&self, table: &MemTable) -> bool {
        if table.batches.len() != self.batches.len() {
            return false;
        }
        for (now, known) in table.batches.iter().zip(&*self.batches) {
            if !addresses(&now.read().await).eq(known.iter().copied()) {
                return false;
            }
        }
        true
    }

    /// False where the table is gone, or the last batch of a partition is another one. A partition that is being
    /// written to tells the next time.
    fn may_be_alive(&self) -> bool {
        let Some(table) = self.table.upgrade() else {
            return false;
        };
        let Some(table) = table.downcast_ref::<MemTable>() else {
            return false;
        };
        let mut partitions = table.batches.iter().zip(&*self.batches);
        partitions.all(|(now, known)| {
            let Ok(now) = now.try_read() else {
                return true;
            };
            let last = now.last().map(std::slice::from_ref).unwrap_or_default();
            let last: Vec<usize> = addresses(last).collect();
            known.ends_with(&last) && known.is_empty() == last.is_empty()
        })
    }
}

/// The batches that a plan scans, if it does nothing else.
fn batches(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<[Vec<usize>]>> {
    let source = plan.downcast_ref::<DataSourceExec>()?.data_source();
    let partitions = source.downcast_ref::<MemorySourceConfig>()?.partitions();
    let addresses = partitions.iter().map(|part| addresses(part).collect());
    Some(addresses.collect())
}

/// The addresses of the arrays of batches, and the rows of each batch.
fn addresses(batches: &[RecordBatch]) -> impl Iterator<Item = usize> {
    batches.iter().flat_map(|batch| {
        let arrays = batch.columns().iter();
        let arrays = arrays.map(|array| std::ptr::from_ref::<dyn Array>(array.as_ref()).addr());
        arrays.chain([batch.num_rows()])
    })
}
