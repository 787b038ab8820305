//! The indexes of a relation that a query needs, and the engine of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};

use crate::exec::common::engine_choice::{Case, Decision, decide};
use crate::exec::range_lookup::kept_index::IndexKey;
use crate::exec::range_lookup::source::RelationSource;
use crate::kept::catalog::IndexCatalog;
use datafusion_rmq_logical::common::column_ref::ColumnRef;
use datafusion_rmq_logical::common::options::{EngineChoice, RmqOptions};
use datafusion_rmq_logical::logical_plan::range_lookup::Source;
use rmq_arrow::common::ordered_type::key_bytes;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::index::devices::Target;
use rmq_engine::Extreme;

/// An index of a relation: its column, and what it answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexId {
    pub(crate) column: String,
    pub(crate) kind: IndexKind,
}

impl IndexId {
    /// The extreme that an index of a column in files finds.
    ///
    /// # Errors
    /// An internal error for another index, which needs all rows in memory.
    pub(crate) fn extreme(&self) -> Result<Extreme> {
        match self.kind {
            IndexKind::Extremes(extreme) => Ok(extreme),
            kind => internal_err!("an index of {} needs all rows", kind.name()),
        }
    }
}

/// How a query is expected to use an index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexUse {
    /// Estimated number of ranges, if known.
    pub(crate) ranges: Option<usize>,
    /// Whether an expression queries the index.
    pub(crate) in_expression: bool,
    /// Whether all rows have to be in memory: not where extremes or their positions are asked by an operator.
    pub(crate) needs_rows: bool,
}

/// An index that calls need.
#[derive(Debug, Clone)]
pub(crate) struct RequiredIndex {
    pub(crate) index_use: IndexUse,
    /// The option `rmq.engine` when the query was planned.
    option: EngineChoice,
    /// The engine, once it is chosen.
    pub(crate) decision: Option<Decision>,
}

/// The required indexes of one relation; complete once the query is planned.
#[derive(Debug)]
pub(crate) struct RequiredIndexes {
    pub(crate) label: String,
    pub(crate) is_subquery: bool,
    pub(crate) source: RelationSource,
    pub(crate) catalog: Arc<IndexCatalog>,
    indexes: Mutex<BTreeMap<IndexId, RequiredIndex>>,
}

impl RequiredIndexes {
    /// No indexes yet of the relation `named`, whose rows come from `source`.
    pub(crate) fn new(named: &Source, source: RelationSource, catalog: &Arc<IndexCatalog>) -> Self {
        let (label, is_subquery) = match named {
            Source::Table(column) => (column.0.table.to_string(), false),
            Source::Query(_) => (named.to_string(), true),
        };
        Self::named(label, is_subquery, source, catalog)
    }

    /// No indexes yet of the relation that EXPLAIN names so.
    pub(crate) fn named(
        label: String,
        is_subquery: bool,
        source: RelationSource,
        catalog: &Arc<IndexCatalog>,
    ) -> Self {
        Self {
            label,
            is_subquery,
            source,
            catalog: Arc::clone(catalog),
            indexes: Mutex::default(),
        }
    }

    /// The name of a column in `EXPLAIN`.
    pub(crate) fn column_label(&self, column: &str) -> String {
        if self.is_subquery {
            // The label contains the column's name.
            self.label.clone()
        } else {
            format!("{}.{column}", self.label)
        }
    }

    /// Adds a use of an index. Returns the sum of its uses so far.
    pub(crate) fn add(&self, id: &IndexId, index_use: IndexUse, option: EngineChoice) -> IndexUse {
        let mut indexes = self.lock();
        let required = indexes.entry(id.clone()).and_modify(|required| {
            let known = &mut required.index_use;
            let ranges = known.ranges.zip(index_use.ranges);
            known.ranges = ranges.map(|(a, b)| a.saturating_add(b));
            known.in_expression |= index_use.in_expression;
            known.needs_rows |= index_use.needs_rows;
        });
        let required = required.or_insert(RequiredIndex {
            index_use,
            option,
            decision: None,
        });
        required.index_use
    }

    /// Chooses the engine of an index of `rows` rows; `None` if the choice depends on the number of rows, which is not
    /// known yet.
    ///
    /// # Errors
    /// A planning error if the option forces an engine that is not available.
    pub(crate) async fn decide(
        &self,
        id: &IndexId,
        index_use: IndexUse,
        rows: Option<usize>,
        data_type: &DataType,
        partitions: usize,
        options: &RmqOptions,
    ) -> Result<Option<Decision>> {
        if !matches!(id.kind, IndexKind::Extremes(_)) {
            let why = "devices do not compute order statistics";
            return Ok(Some(Decision::cpu(why)));
        }
        let is_cached = |target: &Target| {
            // Of any version of the table.
            let key = self.cache_key(id, target);
            key.is_some_and(|key| self.catalog.has(|kept, _| key.find_in(kept).is_some()))
        };
        let case = Case {
            rows,
            key_bytes: key_bytes(data_type),
            range_key_bytes: None,
            ranges: index_use.ranges,
            in_expression: index_use.in_expression,
            partitions,
            is_cached: &is_cached,
        };
        decide(&self.catalog, options, &case).await
    }

    /// Records the engine of an index.
    pub(crate) fn record(&self, id: &IndexId, decision: Decision) {
        if let Some(required) = self.lock().get_mut(id) {
            required.decision = Some(decision);
        }
    }

    /// The required indexes as of now.
    pub(crate) fn all(&self) -> BTreeMap<IndexId, RequiredIndex> {
        self.lock().clone()
    }

    /// The columns to be indexed.
    pub(crate) fn columns(&self) -> BTreeSet<String> {
        self.lock().keys().map(|id| id.column.clone()).collect()
    }

    /// The engine of an index in `EXPLAIN`.
    pub(crate) fn engine_label(&self, id: &IndexId) -> String {
        match self.lock().get(id) {
            Some(RequiredIndex {
                decision: Some(decision),
                ..
            }) => decision.to_string(),
            Some(RequiredIndex {
                option: option @ (EngineChoice::Cpu | EngineChoice::Cuda),
                ..
            }) => option.to_string(),
            _ => "auto (chosen when the rows are read)".to_string(),
        }
    }

    /// The key of an index in the session's catalog; `None` for rows whose indexes are not cached, as those of a
    /// subquery.
    pub(super) fn cache_key(&self, id: &IndexId, target: &Target) -> Option<IndexKey> {
        let (column, plan) = match &self.source {
            RelationSource::Table { name, .. } => {
                let column = ColumnRef {
                    column: id.column.clone(),
                    ..name.clone()
                };
                (column, None)
            }
            RelationSource::Sent { key, .. } => {
                let column = ColumnRef {
                    catalog: "".into(),
                    schema: "".into(),
                    table: self.label.as_str().into(),
                    column: id.column.clone(),
                };
                (column, Some(key.clone()?))
            }
            RelationSource::Query(_) => return None,
        };
        Some(IndexKey {
            column,
            plan,
            kind: id.kind,
            target: target.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IndexId, RequiredIndex>> {
        self.indexes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
