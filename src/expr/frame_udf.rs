//! The window form, `frame_min(value, l, r) OVER (PARTITION BY … ORDER BY …)`: frames with bounds that differ from row to row.
//! Positions count the rows of the partition.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    Documentation, PartitionEvaluator, Signature, Volatility, WindowUDFImpl,
    window_doc_sections::DOC_SECTION_ANALYTICAL,
};

use crate::common::ordered_type::check_ordered;
use crate::common::range_function::RangeFunction;
use crate::common::ranges::{Ranges, check_argument_count, coerce_bound};
use crate::index::column_index::ColumnIndex;
use crate::index::sort_keys::Chunks;

/// The three arguments, for error messages.
const ARGUMENTS: &str = "a value, the first position in the partition and the last";

/// One of `frame_min`, `frame_max`, `frame_argmin`, `frame_argmax`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct FrameUdf {
    function: RangeFunction,
    signature: Signature,
}

impl FrameUdf {
    pub(crate) fn new(function: RangeFunction) -> Self {
        Self {
            function,
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }
}

impl WindowUDFImpl for FrameUdf {
    fn name(&self) -> &str {
        self.function.frame_name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name();
        let [value, left, right] = arg_types else {
            check_argument_count(name, arg_types.len(), ARGUMENTS)?;
            return internal_err!("three arguments are a slice of three");
        };
        check_ordered(name, "its first argument", value)?;
        Ok(vec![
            value.clone(),
            coerce_bound(name, "l", left)?,
            coerce_bound(name, "r", right)?,
        ])
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        check_argument_count(self.name(), args.input_fields().len(), ARGUMENTS)?;
        let data_type = self
            .function
            .result_type(args.input_fields()[0].data_type());
        Ok(Arc::new(Field::new(args.name(), data_type, true)))
    }

    fn partition_evaluator(
        &self,
        _args: PartitionEvaluatorArgs,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(FrameEvaluator {
            function: self.function,
        }))
    }

    fn documentation(&self) -> Option<&Documentation> {
        use std::sync::LazyLock;
        static DOCS: LazyLock<[Documentation; 4]> =
            LazyLock::new(|| RangeFunction::ALL.map(document));
        RangeFunction::ALL
            .iter()
            .position(|f| *f == self.function)
            .map(|i| &DOCS[i])
    }
}

fn document(function: RangeFunction) -> Documentation {
    let name = function.frame_name();
    let what = if function.position {
        "position of the leftmost"
    } else {
        "value of the"
    };
    Documentation::builder(
        DOC_SECTION_ANALYTICAL,
        format!(
            "Returns the {what} {} of an expression in the rows of the partition from position l to position r, both inclusive, NULLs \
             skipped.",
            function.extreme.name()
        ),
        format!("{name}(value, l, r)"),
    )
    .with_argument("value", "Any expression of an ordered type")
    .with_argument("l", "The first position, an integer; positions count the partition's rows from 0 in the order of ORDER BY")
    .with_argument("r", "The last position, an integer")
    .with_sql_example(format!("SELECT {name}(close, l, r) OVER (PARTITION BY sym ORDER BY ts) FROM quotes"))
    .build()
}

/// Answers all rows of one partition at once.
#[derive(Debug)]
struct FrameEvaluator {
    function: RangeFunction,
}

impl PartitionEvaluator for FrameEvaluator {
    fn evaluate_all(&mut self, values: &[ArrayRef], _num_rows: usize) -> Result<ArrayRef> {
        let [value, left, right] = values else {
            return internal_err!(
                "{} takes 3 arguments, not {}",
                self.function.frame_name(),
                values.len()
            );
        };
        // DataFusion's tasks use all cores already, so each index is built on one thread.
        let chunks = Chunks {
            arrays: vec![Arc::clone(value)],
            owned_elsewhere: true,
        };
        let RangeFunction { extreme, position } = self.function;
        let index = ColumnIndex::on_cpu(&chunks, value.data_type(), extreme, 1)?;
        let ranges = [Ranges::try_new(left, right)?];
        let answer = index.answer(&ranges, !position, position, false)?;
        let array = if position {
            answer.positions
        } else {
            answer.values
        };
        array.ok_or_else(|| {
            exec_datafusion_err!("the index did not answer {}", self.function.frame_name())
        })
    }
}
