//! An index that a query can use.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, resources_err};

use crate::kept::reserved_index::ReservedIndex;
use datafusion_rmq_logical::expr::index_lookup::RunIndex;
use rmq_arrow::common::range_function::RangeFunction;
use rmq_arrow::index::key_index::{Answer, KeyIndex};

/// An index, and whether the CPU engine may answer if its devices fail.
#[derive(Debug, Clone)]
pub(crate) struct ReadyIndex {
    pub(crate) reserved: Arc<ReservedIndex>,
    pub(crate) allow_cpu_fallback: bool,
}

impl RunIndex for ReadyIndex {
    fn value_type(&self) -> &DataType {
        self.reserved.index.value_type()
    }

    fn call(
        &self,
        function: RangeFunction,
        name: &str,
        bounds: (&ArrayRef, &ArrayRef),
        last: &[ArrayRef],
    ) -> Result<Answer> {
        match function {
            RangeFunction::Extreme { extreme, result } => {
                self.answer_by(|index| index.call(extreme, result, name, bounds, last))
            }
            RangeFunction::Statistic(_) => self.reserved.index.call(function, name, bounds, last),
        }
    }
}

impl ReadyIndex {
    /// Answers by the index of the column's keys, or by the CPU fallback's where devices fail and this is allowed.
    ///
    /// # Errors
    /// Those of `answer`; "Resources exhausted" if the column is not in memory.
    pub(crate) fn answer_by(&self, answer: impl Fn(&KeyIndex) -> Result<Answer>) -> Result<Answer> {
        let index = &self.reserved.index;
        if index.chunks().is_some() {
            return resources_err!("the column does not fit in memory, and its rows are needed");
        }
        if self.allow_cpu_fallback {
            index.answer_or_fall_back(answer)
        } else {
            answer(index.keys()?)
        }
    }
}
