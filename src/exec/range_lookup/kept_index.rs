//! Indexes of columns that a session keeps between queries.

use std::any::Any;
use std::sync::Arc;

use crate::exec::common::plan_key::RepeatedPlan;
use crate::kept::entries::{Description, Kept, KeptMemory};
use crate::kept::reserved_index::ReservedIndex;
use crate::kept::version::Version;
use datafusion_rmq_logical::common::column_ref::ColumnRef;
use datafusion_rmq_logical::logical_plan::named_index::NamedIndex;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::index::devices::Target;

/// What tells an index from others over the same version of its table: the column, what it answers and the engine.
#[derive(Debug, Clone)]
pub(super) struct IndexKey {
    pub(super) column: ColumnRef,
    /// Of the rows of this plan, which another process has sent: there is no table of the session that would tell what
    /// they are. `None` for a table of the session.
    pub(super) plan: Option<Arc<RepeatedPlan>>,
    pub(super) kind: IndexKind,
    pub(super) target: Target,
}

/// The index of a column with its key.
#[derive(Debug)]
pub(super) struct KeptIndex {
    pub(super) key: IndexKey,
    pub(super) reserved: Arc<ReservedIndex>,
}

impl IndexKey {
    /// The index with this key, if it is what is kept.
    pub(super) fn find_in<'a>(&self, kept: &'a Arc<dyn Kept>) -> Option<&'a Arc<ReservedIndex>> {
        let kept = (kept.as_ref() as &dyn Any).downcast_ref::<KeptIndex>()?;
        let is_same = self.is_as(&kept.key, PartialEq::eq);
        is_same.then_some(&kept.reserved)
    }

    fn is_as(&self, other: &Self, is_as: fn(&RepeatedPlan, &RepeatedPlan) -> bool) -> bool {
        let is_plan_as = match (&self.plan, &other.plan) {
            (Some(plan), Some(other)) => is_as(plan, other),
            (None, None) => true,
            _ => false,
        };
        let key = (&self.column, self.kind, &self.target);
        is_plan_as && key == (&other.column, other.kind, &other.target)
    }
}

impl Kept for KeptIndex {
    fn replaces(&self, version: &Version, other: &dyn Kept, other_version: &Version) -> bool {
        let is_later = self.key.plan.is_none() || version.may_succeed(other_version);
        let other = (other as &dyn Any).downcast_ref::<Self>();
        let is_as = RepeatedPlan::is_of_same_plan;
        is_later && other.is_some_and(|other| self.key.is_as(&other.key, is_as))
    }

    fn is_of(&self, named: &NamedIndex) -> bool {
        let is_of_extremes = matches!(self.key.kind, IndexKind::Extremes(_));
        self.key.plan.is_none() && is_of_extremes && named.is_of(&self.key.column)
    }

    fn has_key(&self, _key: &dyn Any) -> bool {
        false
    }

    fn description(&self) -> Description {
        let column = &self.key.column;
        let table = match self.key.plan {
            Some(_) => column.table.to_string(),
            None => column.table_reference().to_string(),
        };
        Description {
            table: Some(table),
            column: column.column.clone(),
            kind: Some(self.key.kind),
            data_type: self.reserved.index.value_type().clone(),
        }
    }

    fn rows(&self) -> usize {
        self.reserved.index.rows()
    }

    fn memory(&self) -> KeptMemory {
        KeptMemory {
            host: self.reserved.bytes(),
            values: 0,
            device: self.reserved.device_bytes(),
        }
    }

    fn is_reserved(&self) -> bool {
        true
    }

    fn drop_values(&self) {}

    fn is_idle(&self) -> bool {
        ReservedIndex::is_idle(&self.reserved)
    }

    fn is_in_place(&self) -> bool {
        self.reserved.index.borrows_column()
    }

    fn target(&self) -> &Target {
        &self.key.target
    }

    fn disk(&self) -> Option<&'static str> {
        self.reserved.disk.label()
    }
}
