//! What a relation is made of, from which another process makes it again: its indexes, and a plan of its rows.

use std::sync::{Arc, Weak};

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::range_lookup::call::PhysicalCall;
use crate::exec::range_lookup::exec::RangeLookupExec;
use crate::exec::range_lookup::prepare::{PhysicalLookup, PrepareIndexesExec};
use crate::exec::range_lookup::relation::Relation;
use crate::exec::range_lookup::required::{IndexId, IndexUse, RequiredIndexes};
use crate::exec::range_lookup::scan::RelationScan;
use crate::exec::range_lookup::source::RelationSource;
use crate::kept::catalog::SharedIndexes;
use datafusion_rmq_logical::common::options::EngineChoice;
use datafusion_rmq_logical::expr::index_lookup::IndexSlot;
use rmq_arrow::common::range_function::{IndexKind, RangeFunction};

/// The parts of a relation.
#[derive(Debug, Clone)]
pub struct RelationParts {
    /// Its name in EXPLAIN.
    pub label: String,
    /// Whether it is a subquery, whose label names its column.
    pub is_subquery: bool,
    /// A plan of the indexed columns, whose rows are in the order of their positions.
    pub plan: Arc<dyn ExecutionPlan>,
    /// The indexes that calls need.
    pub indexes: Vec<RequiredIndexParts>,
}

/// An index that calls need.
#[derive(Debug, Clone)]
pub struct RequiredIndexParts {
    /// The name of the column.
    pub column: String,
    /// What the index answers.
    pub kind: IndexKind,
    /// The estimated number of ranges, if known.
    pub ranges: Option<usize>,
    /// Whether an expression queries it.
    pub in_expression: bool,
}

/// The relation of one or more calls.
#[derive(Debug, Clone)]
pub struct SharedRelation(Arc<Relation>);

/// A [`SharedRelation`] that is not kept.
#[derive(Debug, Clone)]
pub struct WeakRelation(Weak<Relation>);

impl WeakRelation {
    /// The relation, if it is still in use.
    #[must_use]
    pub fn upgrade(&self) -> Option<SharedRelation> {
        self.0.upgrade().map(SharedRelation)
    }
}

impl SharedRelation {
    /// The relation of a call.
    #[must_use]
    pub fn of_call(call: &PhysicalCall) -> Self {
        Self(Arc::clone(&call.relation))
    }

    /// The relation of a lookup by an expression.
    #[must_use]
    pub fn of_lookup(lookup: &PhysicalLookup) -> Self {
        Self(Arc::clone(&lookup.relation))
    }

    /// Tells it from the relations of other queries, also where it is sent to another process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The same relation, which is not kept.
    #[must_use]
    pub fn downgrade(&self) -> WeakRelation {
        WeakRelation(Arc::downgrade(&self.0))
    }

    /// Its parts.
    ///
    /// # Errors
    /// An internal error if its scan is not planned.
    pub fn parts(&self) -> Result<RelationParts> {
        let required = &self.0.required;
        let plan = match self.0.scan() {
            Some(RelationScan::Plan(scan)) => Arc::clone(&scan.plan),
            Some(RelationScan::Memory { schema, columns }) => {
                let fields = schema.fields();
                let chunks = fields.iter().map(|field| columns.get(field.name()));
                let chunks: Vec<_> = chunks.flatten().collect();
                let batches = chunks.iter().map(|chunks| chunks.len()).min().unwrap_or(0);
                let batches = (0..batches).map(|i| {
                    let arrays = chunks.iter().map(|chunks| Arc::clone(&chunks[i]));
                    Ok(RecordBatch::try_new(Arc::clone(schema), arrays.collect())?)
                });
                let batches = batches.collect::<Result<Vec<_>>>()?;
                MemorySourceConfig::try_new_exec(&[batches], Arc::clone(schema), None)?
            }
            None => return internal_err!("the relation {} is not planned", required.label),
        };
        let indexes = required.all().into_iter();
        let indexes = indexes.map(|(id, index)| RequiredIndexParts {
            column: id.column,
            kind: id.kind,
            ranges: index.index_use.ranges,
            in_expression: index.index_use.in_expression,
        });
        Ok(RelationParts {
            label: required.label.clone(),
            is_subquery: required.is_subquery,
            plan,
            indexes: indexes.collect(),
        })
    }
}

impl RelationParts {
    /// The relation. Its indexes are kept if its plan reads Parquet files alone. The engine of each is chosen when the
    /// rows have been read, by the options of the session that executes it, whose `rmq.engine` is `engine`.
    ///
    /// # Errors
    /// DataFusion's, for rows in memory of another schema than that of their plan.
    pub fn relation(self, engine: EngineChoice, indexes: &SharedIndexes) -> Result<SharedRelation> {
        let scan = RelationScan::of_plan(Arc::clone(&self.plan))?;
        let source = RelationSource::sent(self.plan);
        let (label, is_subquery) = (self.label, self.is_subquery);
        let required = RequiredIndexes::named(label, is_subquery, source, &indexes.0);
        for index in self.indexes {
            let id = IndexId {
                column: index.column,
                kind: index.kind,
            };
            let index_use = IndexUse {
                ranges: index.ranges,
                in_expression: index.in_expression,
                needs_rows: true,
            };
            required.add(&id, index_use, engine);
        }
        Ok(SharedRelation(Arc::new(Relation::planned(required, scan))))
    }
}

/// A call of a range function.
#[derive(Debug, Clone)]
pub struct CallParts {
    /// The function.
    pub function: RangeFunction,
    /// The relation of the column.
    pub relation: SharedRelation,
    /// The name of the column.
    pub column: String,
    /// The first position, over the input.
    pub left: PhysicalExprRef,
    /// The last position, over the input.
    pub right: PhysicalExprRef,
    /// The argument after the bounds, if there is one, over the input.
    pub threshold: Option<PhysicalExprRef>,
    /// The name of the added column.
    pub output: String,
    /// The type of the added column.
    pub data_type: DataType,
    /// Whether the bounds differ each time they are evaluated.
    pub volatile: bool,
}

/// The operator that adds the results of these calls to its input.
///
/// # Errors
/// If two columns have the same name.
pub fn range_lookup(
    input: Arc<dyn ExecutionPlan>,
    calls: Vec<CallParts>,
) -> Result<RangeLookupExec> {
    let calls = calls.into_iter().map(|call| PhysicalCall {
        function: call.function,
        relation: call.relation.0,
        column: call.column,
        left: call.left,
        right: call.right,
        threshold: call.threshold,
        output: call.output,
        data_type: call.data_type,
        volatile: call.volatile,
    });
    RangeLookupExec::try_new(input, calls.collect())
}

/// An index that an expression queries: its function, relation and column, and the slot where it finds it.
pub type LookupParts = (RangeFunction, SharedRelation, String, IndexSlot);

/// The operator that makes these indexes ready, and adds the id of the run as a column `run`.
///
/// # Errors
/// If two columns have the same name.
pub fn prepare_indexes(
    input: Arc<dyn ExecutionPlan>,
    lookups: Vec<LookupParts>,
    run: &str,
    is_collected: bool,
) -> Result<PrepareIndexesExec> {
    let lookups = lookups.into_iter();
    let lookups = lookups.map(|(function, relation, column, slot)| PhysicalLookup {
        function,
        relation: relation.0,
        column,
        slot,
    });
    PrepareIndexesExec::try_new(input, lookups.collect(), run, is_collected)
}
