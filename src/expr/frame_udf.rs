//! The window form, `frame_min(value, l, r) OVER (PARTITION BY … ORDER BY …)`: frames with bounds that differ from row
//! to row. Positions count the rows of the partition.

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
use crate::common::ranges::{check_argument_count, coerce_bound};
use crate::index::column_index::ColumnIndex;
use crate::index::sort_keys::Chunks;
use crate::index::threshold::check_comparable;

/// One of the range functions as a window function, `frame_min` and its like.
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

    /// # Errors
    /// A planning error if a call has another number of arguments.
    fn check_argument_count(&self, given: usize) -> Result<()> {
        let what = match self.function.last_argument() {
            Some(last) => format!(
                "a value, the first position in the partition, the last and {}",
                last.meaning
            ),
            None => "a value, the first position in the partition and the last".to_string(),
        };
        check_argument_count(self.name(), given, self.function.argument_count(), &what)
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
        self.check_argument_count(arg_types.len())?;
        let [value, left, right, last @ ..] = arg_types else {
            return internal_err!("a range function has at least three arguments");
        };
        check_ordered(name, "its first argument", value)?;
        let mut types = vec![
            value.clone(),
            coerce_bound(name, "l", left)?,
            coerce_bound(name, "r", right)?,
        ];
        for last in last {
            types.push(if self.function.has_threshold() {
                check_comparable(name, value, last)?;
                last.clone()
            } else {
                coerce_bound(name, "k", last)?
            });
        }
        Ok(types)
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        self.check_argument_count(args.input_fields().len())?;
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
        static DOCS: LazyLock<[Documentation; RangeFunction::ALL.len()]> =
            LazyLock::new(|| RangeFunction::ALL.map(document));
        self.function.index().map(|index| &DOCS[index])
    }
}

fn document(function: RangeFunction) -> Documentation {
    let name = function.frame_name();
    let result = function.description();
    let arguments = function.shown_arguments();
    let docs = Documentation::builder(
        DOC_SECTION_ANALYTICAL,
        format!(
            "Returns the {result} value of an expression in the rows of the partition from position l to position r, both inclusive, NULLs \
             skipped.",
        ),
        format!("{name}(value, {arguments})"),
    )
    .with_argument("value", "Any expression of an ordered type")
    .with_argument("l", "The first position, an integer; positions count the partition's rows from 0 in the order of ORDER BY");
    let docs = function.document_end(docs);
    docs.with_sql_example(format!(
        "SELECT {name}(close, {arguments}) OVER (PARTITION BY sym ORDER BY ts) FROM quotes"
    ))
    .build()
}

/// Answers all rows of one partition at once.
#[derive(Debug)]
struct FrameEvaluator {
    function: RangeFunction,
}

impl PartitionEvaluator for FrameEvaluator {
    fn evaluate_all(&mut self, values: &[ArrayRef], _num_rows: usize) -> Result<ArrayRef> {
        let [value, left, right, last @ ..] = values else {
            return internal_err!(
                "{} takes {} arguments, not {}",
                self.function.frame_name(),
                self.function.argument_count(),
                values.len()
            );
        };
        // DataFusion's tasks use all cores already, so each index is built on one thread.
        let chunks = Chunks {
            arrays: vec![Arc::clone(value)],
            owned_elsewhere: true,
        };
        let index = ColumnIndex::on_cpu(&chunks, value.data_type(), self.function.extreme, 1)?;
        let name = self.function.frame_name();
        let answer = index
            .keys()
            .call(self.function, name, (left, right), last)?;
        let array = answer.values.or(answer.positions);
        array.ok_or_else(|| exec_datafusion_err!("the index did not answer {name}"))
    }
}
